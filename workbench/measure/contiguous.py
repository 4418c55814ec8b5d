"""Allocators that give a request one piece of memory, side by side from its first slot to its last. No torch.

What served language models before paging: PagedAttention (Kwon et al. 2023, section 6.1) assumes a buddy allocator for
Orca. A slot holds one token's keys and values in all layers.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import NamedTuple, Protocol

from workbench.errors import UsageError


class Piece(NamedTuple):
    start: int
    slots: int


class Contiguous(Protocol):
    size: int
    """Slots of the whole memory."""
    pieces: dict[int, Piece]
    """Who holds which."""

    @property
    def free(self) -> int:
        """Slots that nobody holds, wherever they lie."""

    def take(self, owner: int, slots: int) -> bool:
        """One piece of at least so many slots; False, and nothing taken, where no hole is large enough."""

    def give_back(self, owner: int) -> None: ...


class FirstFit:
    """Exactly what was asked for, in the hole that lies lowest."""

    def __init__(self, size: int) -> None:
        self.size = _memory(size)
        self.pieces: dict[int, Piece] = {}
        self._holes = [Piece(0, size)]  # from the lowest up, no two side by side

    @property
    def free(self) -> int:
        return sum(hole.slots for hole in self._holes)

    def take(self, owner: int, slots: int) -> bool:
        _asked(self, owner, slots)
        for at, hole in enumerate(self._holes):
            if hole.slots >= slots:
                rest = [] if hole.slots == slots else [Piece(hole.start + slots, hole.slots - slots)]
                self._holes[at : at + 1] = rest
                self.pieces[owner] = Piece(hole.start, slots)
                return True
        return False

    def give_back(self, owner: int) -> None:
        insort(self._holes, self.pieces.pop(owner))
        joined: list[Piece] = []
        for hole in self._holes:
            if joined and joined[-1].start + joined[-1].slots == hole.start:
                joined[-1] = Piece(joined[-1].start, joined[-1].slots + hole.slots)
            else:
                joined.append(hole)
        self._holes = joined


class Buddy:
    """Pieces of powers of two, each at a multiple of its size: a larger one is halved, two free halves become one.

    The smallest free piece that is large enough is taken, of several the lowest. A memory that is no power of two is
    cut into the largest pieces that are, from its beginning.
    """

    def __init__(self, size: int) -> None:
        self.size = _memory(size)
        self.pieces: dict[int, Piece] = {}
        self._free: dict[int, list[int]] = {1 << order: [] for order in range(size.bit_length())}
        start = 0
        for slots in sorted(self._free, reverse=True):
            if size & slots:
                self._free[slots].append(start)
                start += slots

    @property
    def free(self) -> int:
        return sum(slots * len(starts) for slots, starts in self._free.items())

    def take(self, owner: int, slots: int) -> bool:
        _asked(self, owner, slots)
        wanted = power_of_two(slots)
        found = next((half for half, starts in self._free.items() if half >= wanted and starts), None)
        if found is None:
            return False
        start = self._free[found].pop(0)
        while found > wanted:
            found //= 2
            insort(self._free[found], start + found)
        self.pieces[owner] = Piece(start, wanted)
        return True

    def give_back(self, owner: int) -> None:
        start, slots = self.pieces.pop(owner)
        # Two pieces that the memory began with never join: theirs have different sizes.
        while (start ^ slots) in self._free[slots]:
            self._free[slots].remove(start ^ slots)
            start, slots = start & ~slots, 2 * slots
        insort(self._free[slots], start)


ALLOCATORS: dict[str, Callable[[int], Contiguous]] = {"buddy": Buddy, "first fit": FirstFit}


def power_of_two(slots: int) -> int:
    """The least that is not below ``slots``, at least 1."""
    return 1 << max(0, slots - 1).bit_length()


def _memory(size: int) -> int:
    if size < 1:
        raise UsageError(f"a memory of {size} slots holds nothing: the least is 1")
    return size


def _asked(memory: Contiguous, owner: int, slots: int) -> None:
    if slots < 1:
        raise UsageError(f"request {owner} asks for {slots} slots: the least is 1")
    if owner in memory.pieces:
        raise UsageError(f"request {owner} holds a piece already: give it back first")
