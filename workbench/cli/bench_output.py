"""Where a benchmark's result goes: JSON, a file, a short table, a comparison with an earlier one."""

from __future__ import annotations

import argparse
import json
from typing import Any

from workbench.cli.options import require_writable

SHOWN = ("completed", "rejected", "duration", "total_input_tokens", "total_output_tokens", "request_throughput",
         "output_throughput", "total_token_throughput", "request_goodput", "slo_attainment", "preemptions",
         "prefix_cache_hit_rate", "prefix_cache_block_hit_rate", "mean_batch_size", "idle_slot_share", "peak_kv_usage",
         "avg_latency", "median_latency")  # fmt: skip


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", metavar="FILE", help="write the JSON result to FILE too")
    parser.add_argument("--compare", metavar="BASELINE", help="ratios to a result that was written with --output")


def prepare(args: argparse.Namespace) -> dict[str, Any] | None:
    """The baseline, if one is wanted. A path that cannot be read or written is told before the run, not after."""
    from workbench.measure.compare import read_baseline

    baseline = read_baseline(args.compare) if args.compare else None
    if args.output is not None:
        require_writable("--output", args.output)
    return baseline


def finish(args: argparse.Namespace, result: dict[str, Any], baseline: dict[str, Any] | None) -> None:
    """Writes and prints a result. With a baseline its comparison stands under ``compare``."""
    from workbench.measure.compare import compare

    if args.output:
        # Before the comparison, which may find that the two cannot be compared.
        write(args.output, result)
    if baseline is not None:
        result = {**result, "compare": {"baseline": args.compare, **compare(result, baseline)}}
        if args.output:
            write(args.output, result)
    if args.json:
        print(json.dumps(result, indent=2))
        return
    if "points" in result:
        print_points(result, args.metrics)
    else:
        print_result(result)
    if baseline is not None:
        print_comparison(result["compare"])


def write(path: str, result: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=2)


def print_provenance(result: dict[str, Any]) -> None:
    print(", ".join(f"{name} {value}" for name, value in result["provenance"].items()))


def print_line(name: str, value: object) -> None:
    print(f"{name:<28} {value:,.2f}" if isinstance(value, float) else f"{name:<28} {value}")


def print_result(result: dict[str, Any]) -> None:
    for name in SHOWN:
        if result.get(name) is not None:
            print_line(name, result[name])
    if "bookkeeping_share" in result:
        print_line("bookkeeping (% of steps)", 100 * result["bookkeeping_share"])
    for metric in ("ttft", "tpot", "itl", "e2el", "queue"):
        pair = f"{result[f'median_{metric}_ms']:,.1f} / {result[f'p99_{metric}_ms']:,.1f}"
        print_line(f"median / p99 {metric} (ms)", pair)
    for lost in result.get("rejections", [])[:3]:
        print(f"rejected request {lost['index']}: {lost['why']}")
    for name, peer in result.get("peers", {}).items():
        print_line(f"{name} output tok/s", peer["output_throughput"])
        print_line(f"  ours ÷ {name}", result["ratios"][name])
        print_line("  same greedy answers", peer["same_answers"])
    if "provenance" in result:
        print_provenance(result)


def print_points(result: dict[str, Any], metrics: tuple[str, ...]) -> None:
    from workbench.lab.table import Table

    names = list(result["swept"])
    rows = []
    for point in result["points"]:
        values = [_short(point[metric]) for metric in metrics] if "error" not in point else ["failed"] * len(metrics)
        rows.append([*(point["options"][name] for name in names), *values])
    print(repr(Table([*names, *metrics], rows)))
    for point in result["points"]:
        if "error" in point:
            print(f"{', '.join(f'{k}={v}' for k, v in point['options'].items())}: {point['error']}")
    print_provenance(result)


def print_comparison(found: dict[str, Any]) -> None:
    print(f"\ncompared with {found['baseline']} (now ÷ then; rates: more is better, times: less is better)")
    for point in found.get("points", [found]):
        if "options" in point:
            print(", ".join(f"{name}={value}" for name, value in point["options"].items()))
        if "missing" in point:
            print(f"not compared: {point['missing']}")
            continue
        for name, ratio in point["ratios"].items():
            if name.endswith("_ms") and not name.startswith(("median_", "p99_")):
                continue  # the others stand in the JSON result
            print_line(name, "none" if ratio is None else f"{ratio:.3f}")
        differing = {kind: names for kind, names in point["differs"].items() if names}
        for kind, names in differing.items():
            for name, (then, now) in names.items():
                print(f"{kind} differs: {name} was {then!r}, is {now!r}")
        if "config" not in differing and "workload" not in differing:
            print("config and workload are the same")


def _short(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
