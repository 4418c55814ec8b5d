"""The commands and their flags. Nothing here imports torch, so ``--help`` is quick."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from itertools import pairwise
from typing import Any, NoReturn

from workbench import __version__
from workbench.cli import (
    bench,
    bench_gpu,
    bench_peers,
    bench_steps,
    evaluate,
    info,
    info_attention,
    models,
    quantize,
    simulate,
    text,
)
from workbench.cli.options import add_engine_flags, add_sampling_flags

WRONG_USAGE = 2
MAX_TOLD = 600
"""Characters of an error; a value may be of any length."""


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line that names the flag, the value and the remedy; argparse would print all flags."""

    def error(self, message: str) -> NoReturn:
        told = " ".join(message.split()).removeprefix("argument ")
        for kind, words in (("int", "whole number"), ("float", "number")):
            told = re.sub(rf"invalid {kind} value: (.*)", rf"\1 is no {words}", told)
        if len(told) > MAX_TOLD:
            told = f"{told[: MAX_TOLD // 2]}…{told[-MAX_TOLD // 4 :]}"
        self.exit(WRONG_USAGE, f"workbench: {told}; `{self.prog} --help` lists what there is\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            chosen: argparse.ArgumentParser = getattr(found, "parser", self)
            flag = unknown[0].partition("=")[0]
            close = difflib.get_close_matches(flag, chosen._option_string_actions, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            chosen.error(f"{' '.join(unknown)}: there is no such argument{hint}")
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses ``--flag False`` of a switch: argparse would take the word for a prompt, and leave the flag on."""
        words = sys.argv[1:] if args is None else list(args)
        for word, behind in pairwise([*words, ""]):
            if word == "--":
                break
            flag, given, value = word.partition("=")
            value = value if given else behind
            switch = self._option_string_actions.get(flag)
            if isinstance(switch, argparse.BooleanOptionalAction) and value.lower() in ("true", "false"):
                on = flag.startswith("--no-") != (value.lower() == "true")
                meant = next(one for one in switch.option_strings if one.startswith("--no-") != on)
                self.error(f"{flag} takes no value, and {value} was given: say {meant}")
        return super().parse_known_args(words, namespace)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="workbench", description="A readable LLM serving engine, and a course that runs it.")
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

    one = _command(kinds, "steps", bench_steps.steps, "time single steps against the simulator's cost model")
    bench_steps.add_flags(one)
    add_engine_flags(one)
    one = _command(kinds, "peers", bench_peers.peers, "this engine beside other servers, each in its own environment")
    bench_peers.add_flags(one)
    one = _command(kinds, "gpu", bench_gpu.gpu, "all that needs a GPU: kernels, CUDA graphs, tokens per second")
    bench_gpu.add_flags(one)

    one = _command(commands, "simulate", simulate.simulate, "serve on a chip that is not here, on a virtual clock")
    simulate.add_flags(one)
    add_engine_flags(one)

    one = _command(commands, "quantize", quantize.quantize, "write a model in fewer bits")
    quantize.add_flags(one)

    one = _command(commands, "eval", evaluate.evaluate, "score a text: perplexity, and how far from another model")
    evaluate.add_flags(one)
    add_engine_flags(one)

    kinds = _group(commands, "model", "the models on this machine")
    _command(kinds, "list", models.list_, "the names this project knows and what is here")
    _command(kinds, "fetch", models.fetch, "bring a model onto this machine").add_argument(
        "name", nargs="?", default=None, help="default: WORKBENCH_MODEL, else the default model"
    )
    _command(kinds, "info", models.info, "parameters, bytes and FLOPs of a model").add_argument(
        "name", nargs="?", default=None, help="a name, folder, config.json, .gguf file or hub id; default: as for fetch"
    )

    kinds = _group(commands, "info", "what this machine can do, and what is built to run on it")
    one = _command(kinds, "hardware", info.hardware, "how fast this machine reads memory and multiplies matrices")
    one.add_argument("--refresh", action="store_true", help="measure again, even if it was measured before")
    info_attention.add_flags(
        _command(
            kinds, "attention", info_attention.attention, "who computes attention here or on another card, and why"
        )
    )
    _command(kinds, "kernels", info.kernels, "the operations and who makes them")

    _command(commands, "doctor", models.doctor, "check this machine")
    return parser


def _group(commands: argparse._SubParsersAction, name: str, help: str) -> argparse._SubParsersAction:  # type: ignore[type-arg]
    group = commands.add_parser(name, help=help, description=help)
    return group.add_subparsers(required=True, metavar="COMMAND")


def _command(commands: argparse._SubParsersAction, name: str, run: object, help: str) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    parser.set_defaults(run=run, parser=parser)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser
