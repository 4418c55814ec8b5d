"""``workbench bench steps``: how long a step takes here, against the simulator's cost model."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from workbench.cli.bench_output import print_line, print_provenance, write
from workbench.cli.options import engine_config, require_writable
from workbench.errors import UsageError

ROOM = {"num_kv_blocks": 1024, "max_model_len": 1024}
"""What the steps need, at 16 tokens a block."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measurement")
    group.add_argument("--repeats", type=int, default=7, metavar="N", help="times each step is taken (default: 7)")
    group.add_argument("--plot", metavar="FILE", help="draw modelled against measured times into a PNG")
    group.add_argument("--keep", action="store_true", help="let `--chip this-cpu` use the efficiencies that were found")
    group.add_argument("--output", metavar="FILE", help="write the JSON result to FILE too")


def steps(args: argparse.Namespace) -> None:
    config = engine_config(args)
    if args.repeats < 1:
        raise UsageError(f"--repeats {args.repeats} must be at least 1")
    for flag in ("plot", "output"):
        if getattr(args, flag) is not None:
            require_writable(f"--{flag}", getattr(args, flag))
    from workbench.llm import LLM
    from workbench.measure.ceilings import keep_efficiency
    from workbench.measure.hardware import hardware
    from workbench.measure.result import as_result
    from workbench.measure.step_times import time_steps
    from workbench.simulate.validate import plot, validate

    sized = config.kv_cache_memory_bytes is not None
    room = {k: v for k, v in ROOM.items() if getattr(config, k) is None and not (sized and k == "num_kv_blocks")}
    llm = LLM(config.replace(**room))
    decoder = llm.runner.decoder
    ceilings = hardware(decoder.device.type)
    dtype = str(decoder.dtype).removeprefix("torch.")
    found = validate(llm.model_config, ceilings, dtype, *time_steps(llm, args.repeats))
    result = as_result("steps", llm, {"kind": "steps", "repeats": args.repeats}, found.to_dict())
    if args.output:
        write(args.output, result)
    if args.plot:
        plot(found).savefig(args.plot, dpi=120)
    if args.keep:
        keep_efficiency(found.hardware, asdict(found.chip.efficiency))
    if args.json:
        print(json.dumps(result, indent=2))
        return
    from workbench.lab.table import Table

    rows = [
        [step.batch, step.context, step.chunk, f"{1e3 * step.seconds:.1f}", f"{1e3 * step.modelled:.1f}",
         f"{step.modelled / step.seconds - 1:+.0%}", "" if step.held_out else "yes"]
        for step in found.steps
    ]  # fmt: skip
    print(repr(Table(["requests", "context", "prompt tokens", "ms", "modelled ms", "off by", "calibrated by"], rows)))
    for name, value in result["efficiency"].items():
        print_line(name, f"{value:.3g}")
    print_line("held out: median error", f"{found.after.median:.1%} (uncalibrated {found.before.median:.1%})")
    print_line("held out: 90th percentile", f"{found.after.p90:.1%}")
    print_provenance(result)
