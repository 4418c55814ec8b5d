"""Notebook 08's exercises where they are put, and their references against what they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.reference import merge_states
from kernels.reference.attention import slots_of
from kernels.triton import cascade as cascade_module
from tests.tiny_llm import open_llm
from workbench import SamplingParams
from workbench.lab import compare_rules
from workbench.lab.exercises import exercise
from workbench.lab.exercises.nb08_cases import merged_by_decimals, parts_by_cells, slots_by_walking, state_of
from workbench.lab.paged_lens import attended, cascaded, heads_of, paged_step
from workbench.measure import kv_waste
from workbench.measure.kv_waste import draw_load, parts
from workbench.measure.lengths import Uniform

SLOTS, PARTS, MERGE = (exercise("08", name) for name in ("slots", "slot-parts", "merge"))


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True), st.integers(1, 20), st.data())
def test_slots_are_the_engines(table: list[int], size: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(table) * size))
    expected = slots_of(torch.tensor(table), length, size).tolist()
    assert SLOTS.function(table, length, size) == expected == slots_by_walking(table, length, size)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 70), st.integers(0, 70), st.integers(0, 70))
def test_parts_are_the_simulations(stored: int, later: int, more: int) -> None:
    final, held = stored + later, stored + more
    assert PARTS.function(stored, final, held) == parts(stored, final, held) == parts_by_cells(stored, final, held)


numbers = st.floats(-5, 5).map(lambda x: round(x, 3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=5), min_size=1, max_size=5))
def test_any_cut_into_parts_ends_in_attention_over_all(cut: list[list[tuple[float, float, float]]]) -> None:
    def state(keys: list[tuple[float, float, float]]) -> tuple[list[float], float]:
        return state_of([key[0] for key in keys], [[*key[1:]] for key in keys])

    found = [math.nan, math.nan], -math.inf
    for keys in cut:
        found = MERGE.function(*found, *state(keys))
    out, lse = state([key for keys in cut for key in keys])
    assert found[0] == pytest.approx(out, abs=1e-9) and found[1] == pytest.approx(lse)


@pytest.mark.parametrize("lse", [(0.5, -1.0), (-math.inf, 2.0), (700.0, 699.0), (-math.inf, -math.inf)])
def test_the_reference_is_the_kernels_definition(lse: tuple[float, float]) -> None:
    a, b = [0.5, -2.0, 3.0], [1.5, 0.25, -1.0]
    states = [torch.tensor(x, dtype=torch.float64) for x in ([[a]], [[lse[0]]], [[b]], [[lse[1]]])]
    out, total = merge_states(*states)
    expected = merged_by_decimals(a, lse[0], b, lse[1])
    assert out.flatten().tolist() == pytest.approx(expected[0]) and float(total) == pytest.approx(expected[1])


def test_attention_asks_the_reader_where_tokens_lie(folder: Path) -> None:
    llm = open_llm(folder, attention_backend="torch_native", block_size=4, num_kv_blocks=16)
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    [usual] = llm.generate([[5, 9, 2, 8, 4, 1]], params, use_tqdm=False)
    llm.engine.reset_prefix_cache()
    with SLOTS.use(SLOTS.function) as used:
        [again] = llm.generate([[5, 9, 2, 8, 4, 1]], params, use_tqdm=False)
    assert again.token_ids == usual.token_ids
    assert used.calls == 3 * llm.model_config.num_layers, "once a step and layer"


def test_a_wrong_slot_would_change_the_answer(folder: Path) -> None:
    llm = open_llm(folder, attention_backend="torch_native", block_size=4, num_kv_blocks=16)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    def backwards(table: list[int], length: int, block_size: int) -> list[int]:
        return SLOTS.function(table[::-1], length, block_size)

    def answer() -> list[int]:
        llm.engine.reset_prefix_cache()
        return list(llm.generate([[5, 9, 2, 8, 4, 1, 7, 3, 6]], params, use_tqdm=False)[0].token_ids)

    usual = answer()
    with SLOTS._swapped(backwards):
        assert answer() != usual


def test_the_simulation_asks_the_reader_what_slots_hold() -> None:
    load = draw_load(30, Uniform(4, 30), Uniform(4, 30), 64, 0)
    usual = compare_rules(load, 256, 64)
    with PARTS.use(PARTS.function) as used:
        assert compare_rules(load, 256, 64) == usual
    assert used.calls == sum(one.running for one in usual.values()) and kv_waste.parts is parts


def swapped(merge: Callable[..., Any]) -> float:
    """How far off cascade attention is with a merge, were it let in."""
    step = paged_step([70, 66], shared=64)
    with MERGE._swapped(merge):
        return float((cascaded(step, heads_of(step)) - attended(step)).abs().max())


def test_cascade_asks_the_reader_to_merge() -> None:
    step, own = paged_step([70, 66], shared=64), cascade_module.merge_states
    with MERGE.use(MERGE.function) as used:
        out = cascaded(step, heads_of(step))
    assert used.calls == 2 * step.q.shape[1] and cascade_module.merge_states is own
    torch.testing.assert_close(out, attended(step), atol=1e-6, rtol=1e-5)
    assert swapped(MERGE.function) < 1e-5
    assert swapped(lambda a, la, b, lb: ([(x + y) / 2 for x, y in zip(a, b, strict=True)], max(la, lb))) > 1e-2
