"""Workloads: what is asked of an engine and when, before anything of the engine is known. No torch.

A prompt is a list of pieces. A piece is named, and its tokens are a function of (seed, name): two prompts that name the
same piece have those tokens in common. That one rule makes shared system prompts, RAG documents and the hash ids of a
trace. A piece cut short is the beginning of the long one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from workbench.errors import UsageError
from workbench.measure.lengths import Lengths, Uniform, described


class Piece(NamedTuple):
    """``length`` random tokens, the same wherever ``name`` is the same."""

    name: str
    length: int


class Answer(NamedTuple):
    """The tokens that the engine answered to request ``of``: what a later turn of a chat repeats."""

    of: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a workload."""

    pieces: tuple[Piece | Answer, ...]
    output_len: int
    """Tokens to generate: exactly so many, as an end-of-sequence token is ignored."""
    arrival: float = 0.0
    """Seconds after the start; with ``after``, seconds after that request's answer (think time)."""
    after: int | None = None
    """Index of the request, an earlier one, whose answer must be there first."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their indices; ``seed`` and the pieces say every token.

    ``users``: a closed loop. So many users each send the next request the moment they have their answer, so nobody is
    ever late; ``arrival`` is then not used, except as think time. None: an open loop, where requests arrive when they
    are scheduled, however slow the engine is.
    """

    asks: tuple[Ask, ...]
    seed: int
    description: dict[str, Any]
    users: int | None = None

    def __post_init__(self) -> None:
        if self.users is not None and self.users < 1:
            raise UsageError(f"a closed loop of {self.users} users asks nothing: give at least 1")
        for index, ask in enumerate(self.asks):
            needs = [piece.of for piece in ask.pieces if isinstance(piece, Answer)]
            if ask.after is not None and not 0 <= ask.after < index:
                raise ValueError(f"request {index} waits for {ask.after}, which does not come before it")
            if needs and not {*needs} <= {*_ancestors(self.asks, index)}:
                raise ValueError(f"request {index} repeats an answer that it does not wait for")

    @property
    def input_lens(self) -> tuple[int, ...]:
        """Prompt tokens of each request."""
        return tuple(self.input_len(index) for index in range(len(self.asks)))

    @property
    def output_lens(self) -> tuple[int, ...]:
        return tuple(ask.output_len for ask in self.asks)

    def input_len(self, index: int) -> int:
        return sum(
            piece.length if isinstance(piece, Piece) else self.asks[piece.of].output_len
            for piece in self.asks[index].pieces
        )

    def prompt(self, index: int, vocab_size: int, answers: Mapping[int, Sequence[int]] | None = None) -> list[int]:
        """The token ids, below ``vocab_size``, of one prompt. ``answers``: what earlier requests got, by index."""
        tokens: list[int] = []
        for piece in self.asks[index].pieces:
            if isinstance(piece, Piece):
                tokens += piece_tokens(self.seed, piece.name, piece.length, vocab_size)
            elif answers is None or piece.of not in answers:
                raise UsageError(f"request {index} repeats the answer to request {piece.of}: it cannot be sent before")
            else:
                tokens += answers[piece.of]
        return tokens

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """All prompts, for a workload without turns."""
        return [self.prompt(index, vocab_size) for index in range(len(self.asks))]

    def arriving(self, arrivals: Sequence[float], description: Mapping[str, Any] | None = None) -> Workload:
        """The same requests at other times. Turns keep their think time; only first turns take an arrival."""
        times = iter(arrivals)
        asks = tuple(ask if ask.after is not None else replace(ask, arrival=next(times)) for ask in self.asks)
        return replace(self, asks=asks, description={**self.description, **(description or {})})

    def with_users(self, users: int) -> Workload:
        """The same requests in a closed loop."""
        return replace(self, users=users, description={**self.description, "arrivals": "closed loop", "users": users})

    @property
    def num_arrivals(self) -> int:
        """Requests that wait for no other."""
        return sum(ask.after is None for ask in self.asks)


def piece_tokens(seed: int, name: str, length: int, vocab_size: int) -> list[int]:
    """The tokens of a piece: a function of the seed and the name, and the shorter one begins the longer one."""
    return random.Random(f"{seed}/{name}").choices(range(vocab_size), k=length)


def plain_workload(num_prompts: int, inputs: Lengths, outputs: Lengths, seed: int) -> Workload:
    """Prompts that have nothing in common, all there at the start."""
    draw = random.Random(seed)
    pairs = [(inputs.draw(draw), outputs.draw(draw)) for _ in range(num_prompts)]
    asks = tuple(Ask((Piece(f"own {index}", a),), b) for index, (a, b) in enumerate(pairs))
    alike = isinstance(inputs, Uniform) and isinstance(outputs, Uniform)
    return Workload(asks, seed, {
        "kind": "uniform" if alike else "random", "num_prompts": num_prompts, "input_len": described(inputs),
        "output_len": described(outputs), "seed": seed,
    })  # fmt: skip


def uniform_workload(num_prompts: int, input_len: tuple[int, int], output_len: tuple[int, int], seed: int) -> Workload:
    """Prompt and output lengths drawn uniformly from closed ranges; all there at the start."""
    return plain_workload(num_prompts, Uniform(*input_len), Uniform(*output_len), seed)


PUBLISHED_PROMPTS = 256
PUBLISHED_LENGTHS = (100, 1024)


def published_workload(shrink: int, seed: int) -> Workload:
    """The workload that nano-vllm and mini-sglang publish figures of, or one that a CPU can serve.

    ``shrink=1``: 256 requests, prompts and answers of U(100, 1024) tokens. Otherwise the number of requests and both
    ends of the lengths are divided by ``shrink`` (8: 32 requests of U(12, 128)).
    """
    low, high = PUBLISHED_LENGTHS
    span = max(low // shrink, 1), max(high // shrink, 1)
    workload = uniform_workload(max(PUBLISHED_PROMPTS // shrink, 1), span, span, seed)
    return replace(workload, description={**workload.description, "kind": "nano-vllm", "shrink": shrink})


def _ancestors(asks: Sequence[Ask], index: int) -> list[int]:
    """The requests that ``index`` waits for, directly or not."""
    found = []
    after = asks[index].after
    while after is not None:
        found.append(after)
        after = asks[after].after
    return found
