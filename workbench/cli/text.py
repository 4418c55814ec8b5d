"""``workbench generate`` and ``workbench chat``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from workbench.cli.options import engine_config, require_writable, sampling_params
from workbench.errors import UsageError
from workbench.sampling_params import SamplingParams


def generate(args: argparse.Namespace) -> None:
    params, config = sampling_params(args), engine_config(args)
    if args.record is not None:
        require_writable("--record", args.record)
    prompts = args.prompts or _lines_of_stdin()
    if not prompts:
        raise UsageError("there is no prompt: give one as an argument, or one a line on standard input")
    llm = _load(config)
    with nullcontext() if args.record is None else llm.engine.record(args.record):
        outputs = llm.generate(prompts, params, use_tqdm=not args.json and sys.stderr.isatty())
    for prompt, output in zip(prompts, outputs, strict=True):
        if args.json:
            print(json.dumps(output.to_dict(), ensure_ascii=False))
        else:
            for answer in output.outputs:
                print(f"{prompt}{answer.text}")


def _lines_of_stdin() -> list[str]:
    """The lines that are not empty. Only a newline ends one (with or without a carriage return before it): a prompt may
    hold any other character that Python takes for the end of a line."""
    if sys.stdin is None:
        return []
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(newline="\n")
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not text: byte {error.start} is no {error.encoding}; give UTF-8") from None
    return [line for part in text.split("\n") if (line := part.removesuffix("\r"))]


def chat(args: argparse.Namespace) -> None:
    params, config = sampling_params(args), engine_config(args)
    llm = _load(config)
    talk: list[dict[str, str]] = [{"role": "system", "content": args.system}] if args.system else []
    for message in args.messages or _typed():
        talk.append({"role": "user", "content": message})
        if args.json:
            output = llm.chat(talk, params, use_tqdm=False)[0]
            print(json.dumps(output.to_dict(), ensure_ascii=False))
            answer = output.text
        else:
            answer = _stream(llm, talk, params)
        talk.append({"role": "assistant", "content": answer})


def _stream(llm: Any, talk: list[dict[str, str]], params: SamplingParams) -> str:
    """Prints an answer as it comes. Ctrl-C ends the answer, not the conversation."""
    answer = ""
    pieces = llm.stream(talk, params)
    try:
        for piece in pieces:
            answer += piece
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" …", end="")
    finally:
        pieces.close()
    print()
    return answer


def _typed() -> Iterator[str]:
    interactive = sys.stdin.isatty()
    if interactive:
        print("Type a message; an empty line or Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            line = input("> " if interactive else "")
        except EOFError:
            return
        if not line.strip():
            return
        yield line


def _load(config: Any) -> Any:
    # Here and not above: torch takes seconds to import, and wrong flags should be told at once.
    from workbench.llm import LLM

    return LLM(config)
