"""How much of a KV memory holds tokens, and what becomes of the rest: reservations in one piece, and paging. No torch.

The baselines of PagedAttention (Kwon et al. 2023, sections 3.1 and 6.1; figure 2), which reserve a request's slots when
it is admitted: ``max``, the longest that the model allows; ``pow2``, the prompt and the answer's length rounded up to a
power of two; ``oracle``, what it will really need. Paging takes blocks as tokens come, from the engine's own
`BlockPool`.

Requests are served in order, as many at once as find room, one token a step each. Only steps in which somebody waits
count: in the others free memory is no waste.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from workbench.errors import UsageError
from workbench.kv.pool import BlockPool
from workbench.measure.contiguous import Contiguous, power_of_two
from workbench.measure.lengths import Lengths


class Demand(NamedTuple):
    """What one request will need: its prompt and its answer in tokens."""

    prompt: int
    answer: int

    @property
    def final(self) -> int:
        """Tokens whose keys and values are stored at the end: the last of the answer is never read again."""
        return self.prompt + self.answer - 1


class Slots(NamedTuple):
    """A KV memory in slots, summed over steps; the fields add up to the whole memory."""

    tokens: int
    """Hold a token's keys and values."""
    reserved: int
    """Will hold one before the request ends, and are kept for it until then."""
    internal: int
    """Kept for a request that will never use them."""
    rounding: int
    """Given beyond what was asked for, as pieces come in sizes of their own."""
    scattered: int
    """Free, enough for the request that waits, and no hole is: external fragmentation in the narrow sense."""
    too_few: int
    """Free and fewer than the request that waits asks for, wherever they lie."""

    @property
    def external(self) -> int:
        """What the paper's figure 2 calls "external fragmentation and others"."""
        return self.rounding + self.scattered + self.too_few


class Waste(NamedTuple):
    slots: Slots
    steps: int
    """In which somebody waited."""
    running: int
    """Requests that ran, summed over these steps."""
    preempted: int
    """How often a request gave its blocks up, to be computed again."""
    recomputed: int
    """Tokens that these requests had stored; beside the load's own, they are what was computed again."""

    @property
    def at_once(self) -> float:
        """Requests in a step, on average."""
        return self.running / self.steps

    def share(self, name: str) -> float:
        """Of the memory, averaged over steps: ``tokens``, ``internal``, ``external``, …"""
        return float(getattr(self.slots, name)) / sum(self.slots)


Rule = Callable[[Demand, int], int]
"""(a request, the longest that the model allows) to the slots that are reserved for it."""
RULES: dict[str, Rule] = {
    "max": lambda one, longest: longest,
    "pow2": lambda one, longest: min(one.prompt + power_of_two(one.answer), longest),
    "oracle": lambda one, longest: one.final,
}


def draw_load(count: int, prompts: Lengths, answers: Lengths, longest: int, seed: int) -> list[Demand]:
    """Random requests; an answer ends where the model does. Raises UsageError for a prompt that leaves no room."""
    draw, load = random.Random(f"{seed}/demand"), []
    for _ in range(count):
        prompt, answer = prompts.draw(draw), answers.draw(draw)
        if prompt >= longest:
            raise UsageError(f"a prompt of {prompt} tokens leaves no room in {longest}: give shorter prompts")
        load.append(Demand(prompt, min(answer, longest - prompt)))
    return load


def parts(stored: int, final: int, held: int) -> tuple[int, int, int]:
    """The slots that a request holds: those with a token, those it will still fill, those it never will.

    ``stored``: tokens now; ``final``: at the end; ``held``: its slots, which with paging may be fewer than ``final``.
    """
    used = min(final, held)
    return stored, used - stored, held - used


def reserve(
    load: Sequence[Demand], memory: Contiguous, rule: Rule, longest: int, arrivals: Sequence[int] | None = None
) -> Waste:
    """Serves the load from a memory that gives each request one piece. ``arrivals``: the step in which each comes, in
    order; all at the start unless given. Raises UsageError for a request that could never run."""
    line = _Line(load, arrivals)
    asked = [rule(one, longest) for one in load]
    stored: dict[int, int] = {}
    while line.coming or line.waiting or stored:
        for number in [number for number, tokens in stored.items() if tokens == load[number].final]:
            memory.give_back(number)
            del stored[number]
        for number in stored:
            stored[number] += 1
        line.arrive()
        while line.waiting and memory.take(line.waiting[0], asked[line.waiting[0]]):
            number = line.waiting.popleft()
            stored[number] = load[number].prompt
        if line.waiting and not stored:
            raise UsageError(f"{asked[line.waiting[0]]} slots never fit into {memory.size}: give a larger memory")
        if line.waiting:
            rounding = sum(memory.pieces[number].slots - asked[number] for number in stored)
            line.count([(tokens, asked[number]) for number, tokens in stored.items()], [*stored], rounding,
                       memory.free, memory.free >= asked[line.waiting[0]])  # fmt: skip
        line.step += 1
    return line.waste()


def page(load: Sequence[Demand], pool: BlockPool, arrivals: Sequence[int] | None = None) -> Waste:
    """Serves the load block by block. Where no block is left, the last to be admitted gives all of its up and goes
    back to the head of the line. Raises UsageError as `reserve`."""
    line = _Line(load, arrivals)
    stored: dict[int, int] = {}  # of each running request, in the order of admission
    before: dict[int, int] = {}  # of those that were preempted
    longest, preempted, recomputed = max((one.final for one in load), default=0), 0, 0
    if pool.blocks_for(longest) > pool.num_blocks:
        raise UsageError(f"{longest} tokens never fit into {pool.num_blocks} blocks of {pool.block_size}")
    while line.coming or line.waiting or stored:
        for number in [number for number, tokens in stored.items() if tokens == load[number].final]:
            pool.release(str(number))
            del stored[number]
        for number in list(stored):
            full = number in stored and stored[number] == len(pool.tables[str(number)]) * pool.block_size
            while full and number in stored and not pool.num_free:
                last = next(reversed(stored))
                pool.release(str(last))
                before[last] = stored.pop(last)
                line.waiting.appendleft(last)
                preempted += 1
                recomputed += before[last]
            if number in stored:
                pool.grow(str(number), int(full))
                stored[number] += 1
        line.arrive()
        while line.waiting:
            number = line.waiting[0]
            tokens = before.get(number, load[number].prompt)
            if pool.blocks_for(tokens) > pool.num_free:
                held = [(stored[number], len(pool.tables[str(number)]) * pool.block_size) for number in stored]
                line.count(held, [*stored], 0, pool.num_free * pool.block_size, False)
                break
            pool.open(str(line.waiting.popleft()))
            pool.grow(str(number), pool.blocks_for(tokens))
            stored[number] = tokens
        line.step += 1
    return line.waste(preempted, recomputed)


class _Line:
    """Who comes and who waits, and what was counted while somebody did."""

    def __init__(self, load: Sequence[Demand], arrivals: Sequence[int] | None) -> None:
        steps = [0] * len(load) if arrivals is None else arrivals
        if len(steps) != len(load) or any(a > b for a, b in pairwise(steps)):
            raise UsageError(f"{len(steps)} arrivals for {len(load)} requests: give one step for each, in order")
        self.load = load
        self.coming = deque((step, number) for number, step in enumerate(steps))
        self.waiting: deque[int] = deque()
        self.step = 0
        self._slots, self._steps, self._running = [0] * len(Slots._fields), 0, 0

    def arrive(self) -> None:
        while self.coming and self.coming[0][0] <= self.step:
            self.waiting.append(self.coming.popleft()[1])

    def count(
        self, held: Sequence[tuple[int, int]], running: Sequence[int], rounding: int, free: int, enough: bool
    ) -> None:
        """``held``: (tokens stored, slots held) of each running request; ``enough``: for the one that waits."""
        found = [parts(one[0], self.load[number].final, one[1]) for one, number in zip(held, running, strict=True)]
        sums = [sum(column) for column in zip(*found, strict=True)] or [0, 0, 0]
        sums += [rounding, free if enough else 0, 0 if enough else free]
        self._slots = [before + more for before, more in zip(self._slots, sums, strict=True)]
        self._steps, self._running = self._steps + 1, self._running + len(running)

    def waste(self, preempted: int = 0, recomputed: int = 0) -> Waste:
        if not self._steps:
            raise UsageError("nobody ever waited, so nothing was wasted: give more requests or less memory")
        return Waste(Slots(*self._slots), self._steps, self._running, preempted, recomputed)
