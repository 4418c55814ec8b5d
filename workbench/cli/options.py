"""Flags made from the fields of `EngineConfig` and `SamplingParams`, so that a name is written once."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import Any

from workbench.config import EngineConfig, from_options
from workbench.errors import WorkbenchError
from workbench.sampling_params import SamplingParams

SAMPLING_FLAGS = {
    "temperature": "0 is greedy",
    "top_p": "keep the smallest set of likeliest tokens that reaches this probability",
    "top_k": "keep this many likeliest tokens; 0 = all",
    "min_p": "drop tokens less likely than this share of the likeliest",
    "presence_penalty": "taken off the logits of tokens that the answer holds",
    "frequency_penalty": "taken off once for each time",
    "repetition_penalty": "divides the logits of tokens seen in prompt or answer; 1 = none",
    "max_tokens": "most tokens of an answer",
    "min_tokens": "least tokens of an answer",
    "ignore_eos": "do not stop at an end-of-sequence token",
}


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each engine option: ``max_num_seqs`` is ``--max-num-seqs``. Absent flags stay absent."""
    group = parser.add_argument_group("engine options (vLLM's names)")
    for spec in dataclasses.fields(EngineConfig):
        meta = spec.metadata
        flag, default = "--" + spec.name.replace("_", "-"), meta["default"]
        kind = str(spec.type).split(" ")[0]
        told = {True: "on", False: "off"}[default] if kind == "bool" else default
        text = meta["help"] + ("" if default is None else f" (default: {told})")
        common: dict[str, Any] = {"dest": spec.name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if kind == "bool":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        elif kind == "tuple[int,":
            group.add_argument(flag, type=int, nargs="+", metavar="N", **common)
        else:
            convert = {"int": int, "float": float, "str": str}[kind]
            metavar = "{" + ",".join(meta["choices"]) + "}" if "choices" in meta else kind.upper()
            group.add_argument(flag, type=convert, metavar=metavar, **common)


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The config of the engine flags that were given."""
    names = {spec.name for spec in dataclasses.fields(EngineConfig)}
    return from_options({name: value for name, value in vars(args).items() if name in names})


def add_sampling_flags(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Flags of `SamplingParams`; ``defaults`` replace the class's own."""
    group = parser.add_argument_group("sampling")
    own = {spec.name: spec.default for spec in dataclasses.fields(SamplingParams)}
    for name, text in SAMPLING_FLAGS.items():
        default = defaults.get(name, own[name])
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            group.add_argument(flag, action="store_true", default=default, help=text)
        else:
            group.add_argument(
                flag, type=type(default), default=default, metavar="N", help=f"{text} (default: {default})"
            )
    group.add_argument("--stop", nargs="+", default=(), metavar="TEXT", help="text that ends an answer")
    group.add_argument(
        "--stop-token-ids", type=int, nargs="+", default=(), metavar="ID", help="tokens that end an answer"
    )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The `SamplingParams` of the flags. ``--seed`` is the engine's: a request's seed comes from it and its number."""
    return SamplingParams(
        **{name: getattr(args, name) for name in SAMPLING_FLAGS},
        n=getattr(args, "n", 1),
        stop=args.stop,
        stop_token_ids=tuple(args.stop_token_ids),
    )


def require_writable(flag: str, path: str) -> None:
    """Raises WorkbenchError if no file can be written to ``path``: told before a long run and not after it.

    Leaves no empty file behind, so that a file that is there says that the run is over.
    """
    file = Path(path)
    try:
        existed = os.path.lexists(file)
        open(file, "a").close()
        if not existed:
            file.unlink()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise WorkbenchError(
            f"{flag} {path!r} cannot be written: {reason}; name a file in a folder that exists"
        ) from None
