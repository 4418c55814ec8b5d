"""Notebook 07's exercises inside the interpreted kernel, and their references against what they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.triton import attention_walk
from kernels.triton.interpreter import interpreting
from workbench.lab.attention_rungs import attention_inputs, rung, rung_errors, rung_steps, rung_visits
from workbench.lab.exercises import exercise
from workbench.lab.exercises.nb07_cases import blocks_by_looking, folded, softmax_at_once

STEP, BLOCKS = exercise("07", "online-step"), exercise("07", "key-blocks")
inside = pytest.mark.skipif(not interpreting(), reason="only an interpreted kernel can ask a Python function")


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


scores = st.one_of(st.just(-math.inf), st.integers(-200, 200).map(lambda n: n / 8))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(scores, min_size=1, max_size=5), min_size=1, max_size=6))
def test_any_cut_ends_in_the_softmax_of_all(blocks: list[list[float]]) -> None:
    values = [[float(3 * i + j) for j in range(len(block))] for i, block in enumerate(blocks)]
    assert folded(STEP.function, blocks, values) == pytest.approx(softmax_at_once(blocks, values), rel=1e-9, abs=1e-9)


def test_a_failure_over_several_blocks_names_what_it_was_given() -> None:
    def unguarded(highest: float, scores: list[float]) -> tuple[float, list[float], float]:
        new = max(highest, *scores)
        return new, [2.0 ** (score - new) for score in scores], 2.0 ** (highest - new)

    text = repr(STEP.graded(unguarded))
    for shown in ("input blocks of scores", "input their values", "log2 of the sum of 2 ** score"):
        assert shown in text
    assert "input highest" not in text


@settings(max_examples=80, deadline=None)
@given(st.integers(-6, 60), st.integers(0, 20), st.integers(1, 9), st.one_of(st.none(), st.integers(1, 50)))
def test_blocks_are_those_found_by_looking(first: int, more: int, block: int, window: int | None) -> None:
    answer = BLOCKS.function(first, first + more, block, window)
    assert tuple(map(list, answer)) == tuple(map(list, blocks_by_looking(first, first + more, block, window)))


@inside
@pytest.mark.parametrize("window", [None, 7])
def test_the_kernel_asks_the_readers_step(window: int | None) -> None:
    inputs, own = attention_inputs(40), attention_walk.online_step
    before, lse = rung("flash", inputs, window)
    with STEP.use(STEP.function) as used:
        after, lse_after = rung("flash", inputs, window)
    assert attention_walk.online_step is own and used.calls > 40
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse_after, lse, atol=1e-5, rtol=1e-5)


@inside
@pytest.mark.parametrize("window", [None, 20])
def test_the_kernel_visits_what_the_readers_function_says(window: int | None) -> None:
    inputs, before = attention_inputs(72), rung_visits(attention_inputs(72), window)
    out = rung("flash", inputs, window)
    with BLOCKS.use(BLOCKS.function) as used:
        assert rung_visits(inputs, window) == before
        assert all(torch.equal(a, b) for a, b in zip(rung("flash", inputs, window), out, strict=True))
    assert used.calls == 2 * 5, "once a tile and run"


def swapped(function: Callable[..., Any], window: int | None) -> tuple[int, torch.Tensor]:
    """What a wrong function would do, were it let in."""
    inputs = attention_inputs(72)
    with BLOCKS._swapped(function):
        return len(rung_visits(inputs, window)), rung("flash", inputs, window)[0]


@inside
def test_what_wrong_blocks_would_do() -> None:
    right = rung("flash", attention_inputs(72), 20)[0]
    count = len(rung_visits(attention_inputs(72), 20))

    def masks_all(first: int, last: int, block: int, window: int | None) -> tuple[range, range]:
        return range(0, last // block + 1), range(0)

    def forgets_one(first: int, last: int, block: int, window: int | None) -> tuple[range, range]:
        visited, whole = BLOCKS.function(first, last, block, window)
        return visited[1:], whole

    many, same = swapped(masks_all, 20)
    assert many > count and torch.allclose(same, right, atol=1e-5), "masked, not skipped: right and slow"
    assert not torch.allclose(swapped(forgets_one, 20)[1], right, atol=1e-2)


def test_where_causality_is_off_the_kernel_keeps_its_own_bounds() -> None:
    taken = BLOCKS.swap.adapt(BLOCKS.function, lambda *_: "its own")  # type: ignore[union-attr]
    assert taken(0, 8, 8, 0, 2, 32, 16, False, False) == "its own"


@inside
def test_the_rungs_under_the_lens() -> None:
    errors, allowed = rung_errors(attention_inputs(40, dtype=torch.bfloat16))
    assert [*errors] == ["definition", "naive", "tiled", "flash"] and 0 < max(errors.values()) <= allowed
    steps = rung_steps(attention_inputs(40))
    assert len(steps) == 3 and steps[0].before == -math.inf
    assert all(a.after == b.before for a, b in pairwise(steps))
    assert all(step.factor == pytest.approx(2 ** (step.before - step.after)) for step in steps)
