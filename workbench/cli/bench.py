"""``workbench bench throughput|latency|serve|sweep``."""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import TYPE_CHECKING

from workbench.cli import bench_load, bench_output
from workbench.cli.options import engine_config, require_writable
from workbench.errors import UsageError, WorkbenchError

if TYPE_CHECKING:
    from workbench.measure.sweep import Point

PEERS = ("transformers",)
SWEPT_AT_ONCE = 2


def add_throughput_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    known = bench_load.DATASETS["random"]
    for name, default in known.items():
        bench_load.add_flag(group, name, bench_load.FLAGS[name], {"default": default})
    group.add_argument("--vs", choices=PEERS, help="run a peer on the same requests, in turn")
    group.add_argument("--repeats", type=int, default=1, metavar="N", help="rounds; medians are reported (default: 1)")
    bench_output.add_output_flags(parser)


def throughput(args: argparse.Namespace) -> None:
    config = engine_config(args)
    _at_least_one(args, "repeats")
    workload = bench_load.given("random", args, config.seed)
    baseline = bench_output.prepare(args)
    from workbench.measure.throughput import run

    bench_output.finish(args, run(config, workload, args.vs, args.repeats), baseline)


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    bench_load.add_load_flags(parser)
    bench_output.add_output_flags(parser)


def serve(args: argparse.Namespace) -> None:
    load = bench_load.load_of(args)
    baseline = bench_output.prepare(args)
    from workbench.measure.serve import run

    bench_output.finish(args, run(load), baseline)


def add_latency_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    for name, default, text in (
        ("batch-size", 8, "requests in the batch"),
        ("input-len", 32, "prompt tokens of each"),
        ("output-len", 128, "output tokens of each"),
        ("num-iters", 5, "batches that are counted"),
        ("num-iters-warmup", 1, "batches before them"),
    ):
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    bench_load.add_percentiles(group)
    bench_output.add_output_flags(parser)


def latency(args: argparse.Namespace) -> None:
    config = engine_config(args)
    _at_least_one(args, "batch_size", "input_len", "output_len", "num_iters")
    if args.num_iters_warmup < 0:
        raise UsageError(f"--num-iters-warmup {args.num_iters_warmup} must be at least 0")
    baseline = bench_output.prepare(args)
    from workbench.measure.latency import run

    result = run(
        config, args.batch_size, args.input_len, args.output_len, args.num_iters_warmup, args.num_iters,
        args.percentiles,
    )  # fmt: skip
    bench_output.finish(args, result, baseline)


def add_sweep_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("grid", nargs="+", metavar="OPTION=A,B,C",
                        help="values of one or two options, engine's or workload's, by flag name")  # fmt: skip
    parser.add_argument("--plot", metavar="FILE", help="draw the metrics into a PNG")
    parser.add_argument("--metrics", type=lambda text: tuple(text.split(",")), metavar="NAME,NAME",
                        default=("output_throughput", "median_ttft_ms", "median_tpot_ms", "p99_itl_ms"),
                        help="keys of the result to show (default: output_throughput and three latencies)")  # fmt: skip
    add_serve_flags(parser)


def sweep(args: argparse.Namespace) -> int:
    from workbench.measure import sweep as measured

    points = _points(args)
    measured.check_metrics(args.metrics, args.percentiles)
    baseline = bench_output.prepare(args)
    if args.plot is not None:
        require_writable("--plot", args.plot)
    result = measured.run(points, say=lambda line: print(line, file=sys.stderr))
    good = [point for point in result["points"] if "error" not in point]
    if not good:
        raise WorkbenchError(f"every point failed; the first: {result['points'][0]['error']}")
    bench_output.finish(args, result, baseline)
    if args.plot:
        measured.plot(result, args.plot, args.metrics)
    return int(len(good) < len(points))


def _points(args: argparse.Namespace) -> list[Point]:
    """Every combination, read by the flags' own parsers. All are checked before the first one runs."""
    from workbench.measure.sweep import Point

    grid: dict[str, list[str]] = {}
    for text in args.grid:
        name, equals, values = text.partition("=")
        name = name.lstrip("-").replace("-", "_")
        if not equals or not all(values.split(",")):
            raise UsageError(f"{text!r} is no OPTION=A,B,C such as max_num_seqs=1,4,16")
        if name in grid:
            raise UsageError(f"{name} is swept twice: give all its values at once")
        grid[name] = list(dict.fromkeys(values.split(",")))
    if len(grid) > SWEPT_AT_ONCE:
        raise UsageError(f"{len(grid)} options are swept and a picture shows {SWEPT_AT_ONCE}: fix the others by flags")
    points = []
    for values in itertools.product(*grid.values()):
        options = dict(zip(grid, values, strict=True))
        points.append(Point(options, bench_load.load_of(bench_load.overlaid(args, options, "sweep"))))
    return points


def _at_least_one(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)} must be at least 1")
