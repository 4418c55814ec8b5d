"""The commands and their flags. Nothing here imports torch, so ``--help`` is quick."""

from __future__ import annotations

import argparse

from workbench import __version__
from workbench.cli import bench, info, models, text
from workbench.cli.options import add_engine_flags, add_sampling_flags


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench", description="A readable LLM serving engine, and a course that runs it."
    )
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = _command(commands, "generate", text.generate, "answer prompts")
    one.add_argument(
        "prompts", nargs="*", metavar="PROMPT", help="text; without any, one prompt a line from standard input"
    )
    one.add_argument("--record", metavar="FILE", help="write every step to FILE as JSONL")
    one.add_argument("--n", type=int, default=1, metavar="N", help="answers to each prompt (default: 1)")
    add_sampling_flags(one, temperature=0.0, max_tokens=128)
    add_engine_flags(one)

    one = _command(commands, "chat", text.chat, "talk with a chat model")
    one.add_argument("messages", nargs="*", metavar="MESSAGE", help="say these in turn and leave; without any, talk")
    one.add_argument("--system", metavar="TEXT", help="a system message in front")
    add_sampling_flags(one, temperature=0.0, max_tokens=512)
    add_engine_flags(one)

    kinds = _group(commands, "bench", "measure")
    one = _command(kinds, "throughput", bench.throughput, "serve a batch of requests that all arrive at once")
    bench.add_throughput_flags(one)
    add_engine_flags(one)
    one = _command(kinds, "latency", bench.latency, "serve one batch again and again")
    bench.add_latency_flags(one)
    add_engine_flags(one)
    one = _command(kinds, "serve", bench.serve, "serve requests that arrive over time, in this process")
    bench.add_serve_flags(one)
    add_engine_flags(one)
    one = _command(kinds, "sweep", bench.sweep, "serve the same at every point of a grid of options")
    bench.add_sweep_flags(one)
    add_engine_flags(one)

    kinds = _group(commands, "model", "the models on this machine")
    _command(kinds, "list", models.list_, "the names this project knows and what is here")
    _command(kinds, "fetch", models.fetch, "bring a model onto this machine").add_argument(
        "name", nargs="?", default=None, help="default: the default model"
    )
    _command(kinds, "info", models.info, "parameters, bytes and FLOPs of a model").add_argument(
        "name", nargs="?", default=None, help="a name, folder, config.json, .gguf file or hub id"
    )

    kinds = _group(commands, "info", "what this machine can do, and what is built to run on it")
    one = _command(kinds, "hardware", info.hardware, "how fast this machine reads memory and multiplies matrices")
    one.add_argument("--refresh", action="store_true", help="measure again, even if it was measured before")
    _command(kinds, "attention", info.attention, "the attention backends")
    _command(kinds, "kernels", info.kernels, "the operations and who makes them")

    _command(commands, "doctor", models.doctor, "check this machine")
    return parser


def _group(commands: argparse._SubParsersAction, name: str, help: str) -> argparse._SubParsersAction:  # type: ignore[type-arg]
    group = commands.add_parser(name, help=help, description=help)
    return group.add_subparsers(required=True, metavar="COMMAND")


def _command(commands: argparse._SubParsersAction, name: str, run: object, help: str) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser
