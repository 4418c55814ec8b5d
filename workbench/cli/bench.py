"""``workbench bench throughput``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from workbench.cli.options import engine_config
from workbench.errors import UsageError

PEERS = ("transformers",)


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument("--num-prompts", type=int, default=32, metavar="N", help="requests (default: 32)")
    group.add_argument(
        "--input-len", type=_span, default=(16, 512), metavar="A:B", help="prompt tokens, uniform (16:512)"
    )
    group.add_argument(
        "--output-len", type=_span, default=(16, 256), metavar="A:B", help="output tokens, uniform (16:256)"
    )
    group.add_argument("--vs", choices=PEERS, help="run a peer on the same requests, in turn")
    group.add_argument("--repeats", type=int, default=1, metavar="N", help="rounds; medians are reported (default: 1)")
    group.add_argument("--output", metavar="FILE", help="write the JSON result to FILE too")


def throughput(args: argparse.Namespace) -> None:
    config = engine_config(args)
    for name in ("num_prompts", "repeats"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)} must be at least 1")
    if args.output:
        open(args.output, "a").close()  # A path that cannot be written is told before the run, not after.
    from workbench.measure.throughput import run
    from workbench.measure.workload import uniform_workload

    workload = uniform_workload(args.num_prompts, args.input_len, args.output_len, config.seed)
    result = run(config, workload, args.vs, args.repeats)
    if args.output:
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)


def _span(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        span = int(low), int(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no length or range such as 128 or 16:512") from None
    if not 1 <= span[0] <= span[1]:
        raise argparse.ArgumentTypeError(f"{text!r} must run from at least 1 upwards, such as 16:512")
    return span


def _print(result: dict[str, Any]) -> None:
    def line(name: str, value: object) -> None:
        print(f"{name:<28} {value:,.2f}" if isinstance(value, float) else f"{name:<28} {value}")

    for name in ("completed", "rejected", "duration", "total_input_tokens", "total_output_tokens", "request_throughput",
                 "output_throughput", "total_token_throughput", "preemptions"):  # fmt: skip
        line(name, result[name])
    line("bookkeeping (% of steps)", 100 * result["bookkeeping_share"])
    for metric in ("ttft", "tpot", "itl", "e2el"):
        line(f"median / p99 {metric} (ms)", f"{result[f'median_{metric}_ms']:,.1f} / {result[f'p99_{metric}_ms']:,.1f}")
    for name, peer in result.get("peers", {}).items():
        line(f"{name} output tok/s", peer["output_throughput"])
        line(f"  ours ÷ {name}", result["ratios"][name])
        line("  same greedy answers", peer["same_answers"])
    provenance = result["provenance"]
    print(", ".join(f"{name} {value}" for name, value in provenance.items()))
