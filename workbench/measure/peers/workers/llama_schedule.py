"""Continuous batching over llama.cpp's low-level interface: who goes into the next call of ``llama_decode``.

Every running sequence has a token in each batch; the rest of the batch is filled with the prompts' next tokens, in
order. A head that all prompts share is computed once, in the first sequence, and copied to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Row(NamedTuple):
    """One token of a batch."""

    token: int
    position: int
    sequence: int
    wanted: bool
    """Whether the next token after this one is asked for."""


class Context(Protocol):
    """What scheduling asks of a llama.cpp context."""

    n_batch: int
    """Most tokens of one call."""

    def decode(self, rows: list[Row]) -> list[int]:
        """Computes the rows and returns the likeliest next token of each that is wanted, in order."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Gives ``target`` the first ``length`` tokens of ``source``'s keys and values."""
        ...

    def drop(self, sequence: int) -> None:
        """Forgets a sequence that is done."""
        ...


class Sequence:
    """A request: the tokens that are known and how many of them are in the cache."""

    def __init__(self, index: int, prompt: list[int], output_len: int) -> None:
        self.index = index
        self.tokens = list(prompt)
        self.end = len(prompt) + output_len
        self.computed = 0

    @property
    def running(self) -> bool:
        """Whether all but its last token is in the cache: it has one token in the next batch."""
        return len(self.tokens) - self.computed == 1

    @property
    def done(self) -> bool:
        return len(self.tokens) >= self.end

    def take(self, count: int) -> list[Row]:
        """Its next ``count`` tokens; the last known one asks for the token after it."""
        last = len(self.tokens) - 1
        rows = [
            Row(self.tokens[at], at, self.index, at == last)
            for at in range(self.computed, min(self.computed + count, last + 1))
        ]
        self.computed += len(rows)
        return rows


def serve(
    context: Context,
    prompts: list[list[int]],
    output_lens: list[int],
    head: int = 0,
    first: Callable[[], None] = lambda: None,
) -> list[list[int]]:
    """Greedy answers of exactly the lengths asked for. ``first`` is called when the first token is there.

    ``head``: tokens that all prompts begin with; the last token of a prompt is computed in any case.
    """
    sequences = [
        Sequence(index, prompt, length) for index, (prompt, length) in enumerate(zip(prompts, output_lens, strict=True))
    ]
    head = min([head, *(len(prompt) - 1 for prompt in prompts)]) if len(prompts) > 1 else 0
    if head:
        _share_head(context, sequences, head)
    left = list(sequences)
    while left:
        rows: list[Row] = []
        for sequence in sorted(left, key=lambda one: not one.running):
            if (room := context.n_batch - len(rows)) <= 0:
                break
            rows += sequence.take(room)
        tokens = context.decode(rows)
        if tokens:
            first()
        wanted = [row.sequence for row in rows if row.wanted]
        for index, token in zip(wanted, tokens, strict=True):
            sequences[index].tokens.append(token)
            if sequences[index].done:
                context.drop(index)
        left = [sequence for sequence in left if not sequence.done]
    return [sequence.tokens[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)]


def _share_head(context: Context, sequences: list[Sequence], head: int) -> None:
    source = sequences[0]
    while source.computed < head:
        context.decode(source.take(min(context.n_batch, head - source.computed)))
    for sequence in sequences[1:]:
        context.copy(source.index, sequence.index, head)
        sequence.computed = head
