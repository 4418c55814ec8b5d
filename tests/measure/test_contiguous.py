"""Allocators against memories of single cells, in which holes are found by looking at every cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from workbench.errors import UsageError
from workbench.measure.contiguous import ALLOCATORS, Buddy, Contiguous, FirstFit, Piece, power_of_two

SIZES = (1, 7, 16, 37, 64, 100)
Find = Callable[[list[int | None], int], Piece | None]


def first_fit(cells: list[int | None], slots: int) -> Piece | None:
    """The lowest place where so many cells in a row are free."""
    for start in range(len(cells) - slots + 1):
        if all(cell is None for cell in cells[start : start + slots]):
            return Piece(start, slots)
    return None


def buddy(cells: list[int | None], slots: int) -> Piece | None:
    """The smallest of the free pieces, which are the largest aligned ranges of free cells; of several the lowest."""
    wanted = next(1 << k for k in range(20) if 1 << k >= slots)
    found = [piece for root in _roots(len(cells)) for piece in _free(cells, root) if piece.slots >= wanted]
    if not found:
        return None
    return Piece(min(found, key=lambda piece: (piece.slots, piece.start)).start, wanted)


def _roots(size: int) -> list[Piece]:
    """The memory's binary digits from the highest down: 37 = 32 + 4 + 1."""
    roots, start = [], 0
    for digit in reversed(range(size.bit_length())):
        if size >> digit & 1:
            roots.append(Piece(start, 1 << digit))
            start += 1 << digit
    return roots


def _free(cells: list[int | None], piece: Piece) -> Iterator[Piece]:
    start, slots = piece
    if all(cell is None for cell in cells[start : start + slots]):
        yield piece
    elif slots > 1:
        yield from _free(cells, Piece(start, slots // 2))
        yield from _free(cells, Piece(start + slots // 2, slots // 2))


BY_LOOKING: dict[str, Find] = {"first fit": first_fit, "buddy": buddy}


def compare(memory: Contiguous, find: Find, draw: Random, events: int) -> int:
    """Random comings and goings in both; returns how many found no place."""
    cells: list[int | None] = [None] * memory.size
    refused = 0
    for owner in range(events):
        if memory.pieces and draw.random() < 0.45:
            gone = draw.choice(sorted(memory.pieces))
            memory.give_back(gone)
            cells = [None if cell == gone else cell for cell in cells]
        slots = draw.randint(1, max(1, memory.size // draw.choice((1, 2, 4, 8))))
        place = find(cells, slots)
        assert memory.take(owner, slots) is (place is not None)
        if place is None:
            refused += 1
        else:
            assert memory.pieces[owner] == place
            assert all(cell is None for cell in cells[place.start : place.start + place.slots])
            cells[place.start : place.start + place.slots] = [owner] * place.slots
        assert memory.free == cells.count(None)
    return refused


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("size", SIZES)
def test_every_piece_is_the_one_found_by_looking(name: str, size: int) -> None:
    refused = sum(
        compare(ALLOCATORS[name](size), BY_LOOKING[name], Random(f"{name} {size} {seed}"), 120) for seed in range(4)
    )
    assert size == 1 or refused > 20, "memory was never short"


@pytest.mark.parametrize("name", ALLOCATORS)
def test_all_memory_comes_back(name: str) -> None:
    memory = ALLOCATORS[name](100)
    for owner in range(20):
        memory.take(owner, 5)
    for owner in sorted(memory.pieces, key=lambda owner: owner * 7 % 20):
        memory.give_back(owner)
    assert memory.free == 100 and memory.take(99, 64)


class NeverJoins(Buddy):
    """A seeded bug: halves stay halves."""

    def give_back(self, owner: int) -> None:
        start, slots = self.pieces.pop(owner)
        self._free[slots].append(start)


class BestFit(FirstFit):
    """Another policy under the same name."""

    def take(self, owner: int, slots: int) -> bool:
        self._holes.sort(key=lambda hole: hole.slots)
        return super().take(owner, slots)


@pytest.mark.parametrize(("memory", "name"), [(NeverJoins(64), "buddy"), (BestFit(64), "first fit")])
def test_a_wrong_allocator_is_noticed(memory: Contiguous, name: str) -> None:
    with pytest.raises(AssertionError):
        for seed in range(20):
            compare(type(memory)(64), BY_LOOKING[name], Random(seed), 120)  # type: ignore[call-arg]


def test_what_is_refused() -> None:
    for allocator in ALLOCATORS.values():
        with pytest.raises(UsageError, match="the least is 1"):
            allocator(0)
        memory = allocator(8)
        with pytest.raises(UsageError, match="asks for 0 slots"):
            memory.take(1, 0)
        assert memory.take(1, 3)
        with pytest.raises(UsageError, match="holds a piece already"):
            memory.take(1, 3)
        assert not memory.take(2, 9) and 2 not in memory.pieces


@pytest.mark.parametrize(("slots", "power"), [(1, 1), (2, 2), (3, 4), (25, 32), (32, 32), (33, 64)])
def test_powers(slots: int, power: int) -> None:
    assert power_of_two(slots) == power
