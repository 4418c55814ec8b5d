"""``workbench simulate``: a load on hardware that is not here, on a virtual clock."""

from __future__ import annotations

import argparse
import copy
import sys
from typing import TYPE_CHECKING, Any

from workbench.cli import bench_load, bench_output
from workbench.cli.options import engine_config
from workbench.errors import UsageError

if TYPE_CHECKING:
    from workbench.model.config import ModelConfig
    from workbench.simulate.chip_cost import ChipCost

EFFICIENCIES = {
    "compute_efficiency": ("compute", 1.0, "SHARE", "of the peak that is reached"),
    "memory_efficiency": ("memory", 1.0, "SHARE", "of the bandwidth that is reached"),
    "overlap": ("overlap", 1.0, "SHARE", "of the shorter of reading and computing that costs no time"),
    "step_overhead_ms": ("step_seconds", 1e-3, "MS", "that every step costs besides"),
    "request_overhead_us": ("request_seconds", 1e-6, "US", "that each request in a step costs besides"),
}

WHAT_IF_SHOWN = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms", "preemptions")


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hardware")
    group.add_argument("--chip", required=True, metavar="CHIP",
                       help="a100-80, h100, h200, b200, l4, rtx4090 or this-cpu")  # fmt: skip
    group.add_argument("--weight-dtype", type=dtype_or_bits, default=None, metavar="DTYPE|BITS",
                       help="weights as they lie in memory, such as int4 or 4.5 (default: --dtype)")  # fmt: skip
    group.add_argument("--kv-dtype", type=dtype_or_bits, default=None, metavar="DTYPE|BITS",
                       help="keys and values, likewise")  # fmt: skip
    group.add_argument("--compute-dtype", default=None, metavar="DTYPE",
                       help="in which matrix products run, such as fp8_e4m3 (default: --dtype)")  # fmt: skip
    for name, (_, _, metavar, text) in EFFICIENCIES.items():
        group.add_argument("--" + name.replace("_", "-"), type=float, default=None, metavar=metavar,
                           help=f"{text} (default: the chip's)")  # fmt: skip
    group = parser.add_argument_group("questions")
    group.add_argument("--what-if", nargs="+", default=None, metavar="OPTION=VALUE",
                       help="run again with these engine options and tell where the plans part")  # fmt: skip
    group.add_argument("--find-rate", type=float, nargs="?", const=0.9, default=None, metavar="SHARE",
                       help="search the highest rate at which SHARE (0.9) of requests keep to --goodput")  # fmt: skip
    bench_load.add_load_flags(parser)
    bench_output.add_output_flags(parser)


def simulate(args: argparse.Namespace) -> None:
    from workbench.simulate.goodput import highest_rate
    from workbench.simulate.models import model_shape
    from workbench.simulate.run import simulate
    from workbench.simulate.what_if import what_if

    if args.what_if is not None and args.find_rate is not None:
        raise UsageError("--what-if and --find-rate are two questions: ask one at a time")
    if args.trace is not None and args.num_prompts is None:
        args.num_prompts = sys.maxsize  # a simulated trace is served to its end
    load = bench_load.load_of(args)
    shape = model_shape(load.config.model)
    cost = _cost(args, shape)
    baseline = bench_output.prepare(args)
    if args.find_rate is not None:
        if args.request_rate is not None or args.on_off is not None:
            raise UsageError("--find-rate tries rates of its own: leave --request-rate and --on-off out")
        found = highest_rate(load, cost, shape, args.find_rate, args.burstiness or 1.0)
        result = {**found.result, "highest_rate": found.to_dict()}
    else:
        result = simulate(load, cost, shape)
    if args.what_if is not None:
        options = _options(args.what_if)
        changed = copy.copy(args)
        changed.chip = options.get("chip", args.chip)
        changed = bench_load.overlaid(changed, {k: v for k, v in options.items() if k != "chip"}, "what-if")
        other, other_shape = bench_load.load_of(changed), model_shape(engine_config(changed).model)
        if other_shape != shape:
            raise UsageError("--what-if compares runs of one model: simulate another model by itself")
        other_cost = _cost(changed, shape)
        parting = what_if(load, other, cost, shape, other_cost)
        result["what_if"] = {
            "options": options,
            "result": simulate(other, other_cost, shape),
            "parting": None if parting is None else parting.to_dict(),
        }
    bench_output.finish(args, {**result, "chip": cost.chip.to_dict()}, baseline)
    if not args.json:
        _explain(result, cost)


def dtype_or_bits(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _cost(args: argparse.Namespace, shape: ModelConfig) -> ChipCost:
    from workbench.simulate.chip_cost import ChipCost
    from workbench.simulate.chips import chip_named

    changes = {
        field: getattr(args, name) * unit
        for name, (field, unit, _, _) in EFFICIENCIES.items()
        if getattr(args, name) is not None
    }
    chip = chip_named(args.chip).with_efficiency(**changes)
    return ChipCost(shape, chip, engine_config(args).dtype, args.weight_dtype, args.kv_dtype, args.compute_dtype)


def _options(texts: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise UsageError(f"{text!r} is no OPTION=VALUE such as max_num_batched_tokens=512")
        options[name.lstrip("-").replace("-", "_")] = value
    return options


def _explain(result: dict[str, Any], cost: ChipCost) -> None:
    """What stands in no benchmark's result, as lines."""
    print(f"simulated, not measured; digest of the plans {result['digest']}\n{cost!r}")
    if "highest_rate" in result:
        found = result["highest_rate"]
        print(f"highest rate that keeps to the limits: {found['rate']:.3g} requests a second (above: the run at it)")
    if "what_if" not in result:
        return
    parting = result["what_if"]["parting"]
    changes = ", ".join(f"{name}={value}" for name, value in result["what_if"]["options"].items())
    print(f"\nwhat if {changes}:")
    for name in WHAT_IF_SHOWN:
        bench_output.print_line(name, f"{result[name]:,.2f} → {result['what_if']['result'][name]:,.2f}")
    if parting is None:
        print("both make the same plans to the end")
        return
    print(f"the plans part at step {parting['step']}:")
    for name, (one, other) in list(parting["requests"].items())[:10]:
        print(f"  request {name}: {one}  |  {other}")
