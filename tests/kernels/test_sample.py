"""The choice of tokens: every maker against the definition written out row by row, and the C++ in both builds against
the reference, token for token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
import torch

import kernels
from kernels.cpu import build, native

LAST_NUMBER = 1 - 2**-53
"""The largest number below 1."""


@pytest.fixture(params=["reference", *build.BUILDS])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from opened(request.param, monkeypatch)


@pytest.fixture(params=build.BUILDS)
def one_build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from opened(request.param, monkeypatch)


def opened(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The maker's name, and for the C++ the build of that name."""
    if name == "reference":
        yield name
        return
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", name)
    for cached in (build._library, native.function):
        cached.cache_clear()
    yield "cpu"
    for cached in (build._library, native.function):
        cached.cache_clear()


class Options(NamedTuple):
    """One number for each row."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    min_p: list[float]
    u: list[float]

    @staticmethod
    def alike(rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Options:
        draw = Random(rows)
        return Options(
            [temperature] * rows, [top_k] * rows, [top_p] * rows, [min_p] * rows, [draw.random() for _ in range(rows)]
        )

    def tensors(self) -> list[torch.Tensor]:
        kinds = (torch.float64, torch.int64, torch.float64, torch.float64, torch.float64)
        return [torch.tensor(numbers, dtype=kind) for numbers, kind in zip(self, kinds, strict=True)]


def by_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, u: float
) -> tuple[int, float]:
    """The token, and how far the nearest decision on the way was from going the other way."""
    largest, order = max(logits), list(range(len(logits)))
    if temperature == 0:
        return logits.index(largest), 1.0
    scores = [(logit - largest) / temperature for logit in logits]
    if top_k > 0 or top_p < 1 or min_p > 0:
        order.sort(key=lambda i: -scores[i])
    if top_k > 0:
        order = order[:top_k]
    total = math.fsum(math.exp(scores[i]) for i in order)
    shares = [math.exp(scores[i]) / total for i in order]
    ends = [math.fsum(shares[: i + 1]) for i in range(len(order))]
    kept, margin = len(order), 1.0
    for i in range(len(order) - 1, 0, -1):
        if top_p < 1:
            margin = min(margin, abs(ends[i - 1] - top_p))
            kept = i if ends[i - 1] >= top_p else kept
        if min_p > 0:
            margin = min(margin, abs(shares[i] - min_p * shares[0]))
            kept = i if shares[i] < min_p * shares[0] else kept
    target = u * ends[kept - 1]
    found = next(i for i in range(kept) if ends[i] > target)
    return order[found], min([margin, *(abs(end - target) for end in ends)])


def random_case(draw: Random, sizes: tuple[int, ...], rows: int) -> tuple[torch.Tensor, Options]:
    """Logits of one size and kind, and options of every kind, some of them extreme."""
    size = draw.choice(sizes)
    generator = torch.Generator().manual_seed(draw.randrange(1 << 40))
    wide = draw.choice([0.1, 1.0, 3.0, 10.0]) * torch.randn(rows, size + 3, generator=generator)
    kind = draw.choice(["spread", "spread", "spread", "equal", "ties", "forbidden", "merged"])
    if kind == "equal":
        wide[:] = draw.choice([0.0, 3.0, -1e30])
    elif kind == "ties":
        wide = wide.sign() * wide.abs().floor()
    elif kind == "forbidden":
        wide[torch.rand(wide.shape, generator=generator) < 0.7] = float("-inf")
        wide[:, 1] = 0.0
    elif kind == "merged":  # unlike each other, but not by as much as a double holds of their distance
        wide[:, size // 2 + 1] = 30.0
        wide[:, : size // 2 + 1] *= 1e-22
    logits = wide[:, 1 : size + 1]  # rows do not begin where others end
    options = Options(
        [draw.choice([0.0, 1e-3, 0.1, 0.7, 1.0, 1.0, 1.5, 30.0, 1e3, 1e6]) for _ in range(rows)],
        [draw.choice([0, 0, 0, 1, 2, 5, 50, max(size - 1, 1), size, size + 7, 10**9]) for _ in range(rows)],
        [draw.choice([1.0, 1.0, 1.0, 0.9, 0.5, 0.99, 0.999999, 1e-9, 1e-300]) for _ in range(rows)],
        [draw.choice([0.0, 0.0, 0.0, 0.05, 0.5, 1.0, 1e-12]) for _ in range(rows)],
        [draw.random() for _ in range(rows)],
    )
    return logits if draw.random() < 0.5 else logits.contiguous(), options


@pytest.mark.parametrize("seed", range(6))
def test_every_maker_draws_what_is_defined(maker: str, seed: int) -> None:
    draw, compared = Random(seed), 0
    for _ in range(6):
        logits, options = random_case(draw, (1, 2, 7, 9, 50), rows=30)
        chosen = kernels.sample(logits, *options, maker=maker)
        assert chosen.shape == (30,) and chosen.dtype == torch.int64
        for row, (token, *one) in enumerate(zip(chosen.tolist(), *options, strict=True)):
            expected, margin = by_definition(logits.double()[row].tolist(), *one)
            if margin > 1e-12:
                compared += 1
                assert token == expected, (row, one)
    assert compared > 150


SIZES = (1, 2, 8, 31, 211, 1023, 1024, 1025)


def unlike(draw: Random, draws: int, change: float = 0.0) -> int:
    """How many of so many draws the C++ and the reference decide differently; ``change``: of the kernel's numbers u."""
    found, rows = 0, 100
    for _ in range(draws // rows):
        logits, options = random_case(draw, SIZES, rows)
        expected = kernels.sample(logits, *options, maker="reference")
        changed = options._replace(u=[min(u + change, LAST_NUMBER) for u in options.u])
        found += int((kernels.sample(logits, *changed, maker="cpu") != expected).sum())
    return found


def test_the_same_tokens_as_the_reference(one_build: str) -> None:
    assert unlike(Random(7), 4_000) == 0


@pytest.mark.slow
def test_the_same_tokens_in_a_hundred_thousand_draws(one_build: str) -> None:
    assert unlike(Random(8), 100_000) == 0


def test_the_comparison_tells_slightly_wrong_numbers() -> None:
    assert unlike(Random(7), 4_000, change=1e-3) > 0


@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 4.0, 40.0])
@pytest.mark.parametrize("vocab_size", [49_152, 70_001])
def test_whole_vocabularies(one_build: str, vocab_size: int, spread: float) -> None:
    """From equal logits, where a filter keeps nearly all, to those where one stands alone."""
    logits = spread * torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(1))
    for filters in ({}, {"top_p": 0.9}, {"top_k": 50}, {"top_k": 40_000, "min_p": 0.01}, {"temperature": 0.0}):
        options = Options.alike(6, **filters)
        expected = kernels.sample(logits, *options, maker="reference")
        assert torch.equal(kernels.sample(logits, *options, maker="cpu"), expected), filters


def test_greedy_takes_the_first_of_the_largest_as_argmax_does(maker: str) -> None:
    nan, inf = float("nan"), float("inf")
    rows = [[1.0, nan, 5.0, nan], [-inf] * 4, [-0.0, 0.0, 0.0, -1.0], [1.0, inf, inf, nan], [-inf, -3.0, -3.0, -inf]]
    for pad in (0, 9, 1500):  # beyond one vector, beyond one stretch
        logits = torch.cat([torch.full((len(rows), pad), -inf), torch.tensor(rows)], 1)
        chosen = kernels.sample(logits, *Options.alike(len(rows), temperature=0.0), maker=maker)
        assert torch.equal(chosen, logits.argmax(-1))


def test_rows_without_probabilities_end_as_in_the_reference(one_build: str) -> None:
    logits = torch.randn(40, 1100, generator=torch.Generator().manual_seed(0))
    logits[:10, 700] = float("nan")
    logits[10:20] = float("-inf")
    logits[20:30, [5, 1099]] = float("inf")
    logits[30:] = float("inf")
    for filters in ({}, {"top_k": 3}, {"top_p": 0.5}):
        options = Options.alike(40, **filters)
        expected = kernels.sample(logits, *options, maker="reference")
        assert torch.equal(kernels.sample(logits, *options, maker="cpu"), expected)


def test_the_ends_of_the_numbers_fall_upon_tokens_that_have_weight(maker: str) -> None:
    logits = torch.full((1, 3000), float("-inf"))
    logits[0, [40, 41, 1500, 2999 - 8]] = torch.tensor([0.0, 1.0, 0.5, -1.0])
    for u, plain, ranked in ((0.0, 40, 41), (LAST_NUMBER, 2999 - 8, 2999 - 8)):
        for filters, expected in (({}, plain), ({"top_k": 4}, ranked), ({"top_k": 3000}, ranked)):
            options = Options.alike(1, **filters)._replace(u=[u])
            assert kernels.sample(logits, *options, maker=maker).item() == expected


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-6, 1e300])
def test_no_temperature_leaves_the_range_of_numbers(maker: str, temperature: float) -> None:
    logits = torch.arange(1100.0)[None] / 8
    for filters in ({}, {"top_k": 9}, {"top_p": 0.5}):
        options = Options.alike(1, temperature, **filters)._replace(u=[0.2505])
        found = kernels.sample(logits, *options, maker=maker).item()
        # Cold: the likeliest. Hot: all alike, so a quarter of the way along what the filter keeps.
        hot = {"top_k": 1099 - 2, "top_p": 1099 - 137}.get(next(iter(filters), ""), 275)
        assert found == (1099 if temperature < 1 else hot)


def test_neither_threads_nor_neighbours_change_a_token(one_build: str) -> None:
    logits, options = random_case(Random(3), (5000,), rows=40)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(kernels.sample(logits, *options, maker="cpu").tolist())
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]
    for row, one in enumerate(zip(*options, strict=True)):
        alone = kernels.sample(logits[row : row + 1], *([number] for number in one), maker="cpu")
        assert alone.item() == found[0][row]


def test_a_tape_reads_logits_and_options_anew(one_build: str) -> None:
    logits, options = random_case(Random(5), (3000,), rows=8)
    tensors, tape = options.tensors(), native.Tape(native.Scratch(8))
    with tape.recording():
        chosen = kernels.sample(logits, *tensors, maker="cpu")
    found = []
    for seed in (5, 6, 7):
        fresh, wanted = random_case(Random(seed), (3000,), rows=8)
        logits.copy_(fresh)
        for kept, new in zip(tensors, wanted.tensors(), strict=True):
            kept.copy_(new)
        tape.run()
        assert torch.equal(chosen, kernels.sample(fresh, *wanted, maker="reference"))
        found.append(chosen.tolist())
    assert found[0] != found[1] != found[2]


def test_lists_and_tensors_mean_the_same(maker: str) -> None:
    logits, options = random_case(Random(2), (300,), rows=20)
    lists, tensors = (kernels.sample(logits, *given, maker=maker) for given in (options, options.tensors()))
    assert torch.equal(lists, tensors)
    assert kernels.sample(logits[:0], *([[]] * 5), maker=maker).shape == (0,)


def test_what_it_cannot_take_is_refused_by_name(one_build: str) -> None:
    options, logits = Options.alike(2), torch.zeros(2, 10)
    for wrong, reason in (
        (logits.double(), "float64"),
        (torch.zeros(10, 2).T, "do not lie side by side"),
        (torch.zeros(2, 0), "not rows of a vocabulary"),
    ):
        with pytest.raises(ValueError, match=reason):
            kernels.sample(wrong, *options, maker="cpu")
    with pytest.raises(ValueError, match="3 numbers as top_p for 2 rows"):
        kernels.sample(logits, *options._replace(top_p=[1.0] * 3), maker="cpu")
    short = options.tensors()
    short[4] = short[4].float()
    with pytest.raises(ValueError, match=r"u is torch\.float32"):
        kernels.sample(logits, *short, maker="cpu")
    assert kernels.sample(torch.zeros(10, 2).T, *options).shape == (2,), "auto goes to the reference"
