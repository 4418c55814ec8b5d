"""``workbench info hardware|attention|kernels``: what this machine can do and what is built to run on it."""

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


def attention(args: argparse.Namespace) -> None:
    import torch

    from workbench.attention.registry import BACKENDS, attention_backend
    from workbench.config import DEFAULT_MODEL, EngineConfig
    from workbench.llm import resolve_device
    from workbench.model.config import ModelConfig
    from workbench.model.configs import shipped_config
    from workbench.model.decoder import heads_of

    model, device = ModelConfig.from_dict(shipped_config(DEFAULT_MODEL)), resolve_device(EngineConfig().device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    chosen = attention_backend("auto", heads_of(model, dtype, device, dtype)).name
    if args.json:
        print(json.dumps({"backends": list(BACKENDS), "auto": chosen}))
        return
    rows = [(name, "yes" if name == chosen else "") for name in BACKENDS]
    print(Table(("backend", "taken by auto"), rows, f"auto: for {DEFAULT_MODEL} on this machine ({device.type})."))


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
