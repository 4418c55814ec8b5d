"""``workbench info hardware|kernels``: what this machine can do and what is built to run on it."""

from __future__ import annotations

import argparse
import json

from workbench.lab.table import Table


def hardware(args: argparse.Namespace) -> None:
    from dataclasses import asdict

    from workbench.measure.hardware import hardware

    found = hardware(refresh=args.refresh)
    if args.json:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False))
        return
    rows = [
        ("device", f"{found.device}: {found.name}"),
        ("capability", found.capability),
        ("memory", f"{found.memory_bytes / 1024**3:.1f} GiB"),
        *([("multiprocessors", found.sms)] if found.sms is not None else []),
        ("CPU threads", found.threads),
        ("reads", f"{found.read_bandwidth / 1e9:.1f} GB/s"),
        *((f"multiplies {dtype}", f"{rate / 1e9:,.1f} GFLOP/s") for dtype, rate in found.matmul_flops.items()),
    ]
    print(
        Table(
            ("what", "value"),
            rows,
            f"Measured {found.measured_at}, torch {found.provenance['torch']}. {found.note}".strip(),
        )
    )


def kernels(args: argparse.Namespace) -> None:
    import kernels
    from kernels.cpu.build import cannot_run

    makers = {op: kernels.available(op) for op in kernels.operations()}
    if args.json:
        print(json.dumps(makers))
        return
    reason = cannot_run()
    note = f"The C++ kernels do not run here: {reason}." if reason else "auto takes cpu on a CPU and triton on a GPU."
    print(Table(("operation", "makers"), [(op, ", ".join(names)) for op, names in makers.items()], note))
