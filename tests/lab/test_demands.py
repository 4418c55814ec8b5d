"""Requests by their lengths: bars of what memory does, and the real engine serving them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiny_llm import open_llm
from workbench.config import from_options
from workbench.errors import UsageError
from workbench.kv.pool import BlockPool
from workbench.lab import (
    Player,
    block_table_frames,
    compare_rules,
    control,
    drive,
    explore,
    pool_use,
    serve,
    stacked_bars,
    tables_by_step,
    waste_bars,
)
from workbench.lab.demands import PARTS
from workbench.measure.contiguous import Buddy
from workbench.measure.kv_waste import RULES, draw_load, page, reserve
from workbench.measure.lengths import LogNormal, Uniform
from workbench.simulate import FixedCost, simulated_engine

LOAD = draw_load(40, Uniform(4, 40), Uniform(4, 40), 128, 0)


class OnTiny:
    """As much of a lesson as serving needs."""

    seed = 0

    def engine(self, llm: Any, **options: Any) -> Any:
        return llm.new_engine(**options)


def test_all_rules_are_compared_in_one_memory() -> None:
    found = compare_rules(LOAD, 600, 128)
    assert [*found] == ["max", "pow2", "oracle", "paging"]
    assert found["pow2"] == reserve(LOAD, Buddy(600), RULES["pow2"], 128)
    assert found["paging"] == page(LOAD, BlockPool(600 // 16, 16))
    assert all(sum(one.share(part) for part in PARTS) == pytest.approx(1) for one in found.values())
    assert (
        compare_rules(LOAD, 600, 128, "first fit")["oracle"].share("rounding") == 0 < found["oracle"].share("rounding")
    )


def test_bars_are_as_wide_as_the_shares() -> None:
    found = compare_rules(LOAD, 600, 128)
    axes = waste_bars(found, "forty requests").axes[0]
    widths = [[bar.get_width() for bar in container] for container in axes.containers]
    for part, row in zip(PARTS, widths, strict=True):
        assert row == pytest.approx([100 * one.share(part) for one in found.values()])
    ends = [bar.get_x() + bar.get_width() for bar in axes.containers[-1]]
    assert ends == pytest.approx([100] * 4) and axes.get_title() == "forty requests"
    assert [label.get_text().split(":")[0] for label in axes.get_yticklabels()] == [*found]


def test_the_bars_move_through_every_choice() -> None:
    found = {size: compare_rules(LOAD, size, 128) for size in (600, 900)}
    assert (
        drive(explore(lambda slots: waste_bars(found[slots], "bars"), {"slots": control("slots", choices=(*found,))}))
        == 2
    )


@pytest.mark.parametrize("rows", [{}, {"a": {"x": 1.0}, "b": {"y": 1.0}}, {"a": {str(n): 1.0 for n in range(7)}}])
def test_rows_of_other_parts_are_refused(rows: dict[str, dict[str, float]]) -> None:
    with pytest.raises(UsageError, match="rows that all have the same parts"):
        stacked_bars(rows, "%")


def test_the_engine_serves_them_by_name(folder: Path) -> None:
    lesson: Any = OnTiny()
    llm = open_llm(folder, block_size=4, num_kv_blocks=24, enable_prefix_caching=False)
    demands = [(9, 3), (4, 2), (1, 5)]
    run = serve(lesson, llm, demands, max_num_seqs=2)
    lengths = {
        add["add"]["request_id"]: len(add["add"]["prompt_token_ids"])
        for t in run.traces
        for add in t.inputs
        if "add" in add
    }
    assert lengths == {"A": 9, "B": 4, "C": 1}
    answers = [new["request_id"] for trace in run.traces for new in trace.new_tokens]
    assert {name: answers.count(name) for name in "ABC"} == {"A": 3, "B": 2, "C": 5}
    assert drive(Player(block_table_frames(run.traces, run.snapshots))) == len(run.traces)
    table = tables_by_step(run, 3)
    assert table.head == ["after step", "A", "B", "C"] and len(table.rows) == 3
    for row, snapshot in zip(table.rows, run.snapshots, strict=False):
        held = {
            name: tuple(map(int, str(cell).split())) for name, cell in zip("ABC", row[1:], strict=True) if cell != "–"
        }
        assert held == {name: blocks for name, blocks in snapshot.tables.items() if blocks}


def test_many_requests_have_names_of_their_own(folder: Path) -> None:
    lesson: Any = OnTiny()
    llm = open_llm(folder, block_size=4, num_kv_blocks=24, enable_prefix_caching=False)
    run = serve(lesson, llm, [(2, 1)] * 55)
    names = [end["request_id"] for trace in run.traces for end in trace.finished]
    assert len({*names}) == 55 and {"A", "Z", "A1", "C2"} <= {*names}


class Simulated:
    """A lesson whose engine is the real one on a virtual clock."""

    seed = 0

    def engine(self, llm: Any, **options: Any) -> Any:
        config = from_options({"enable_prefix_caching": False, "max_num_seqs": 512, "max_num_batched_tokens": 1 << 16})
        return simulated_engine(config.replace(**options), FixedCost(1.0))


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_paging_as_counted_is_paging_as_the_engine_does_it(block_size: int) -> None:
    """The engine admits and preempts by rules of its own; shares of memory and requests at once come near."""
    load = draw_load(120, LogNormal(40, 0.9, 4, 200), LogNormal(60, 0.9, 4, 200), 512, 0)
    slots, lesson, llm = 2048, Simulated(), SimpleNamespace(model_config=SimpleNamespace(vocab_size=100))
    limits = {"block_size": block_size, "num_kv_blocks": slots // block_size, "max_model_len": 512}
    run = serve(lesson, llm, load, **limits)  # type: ignore[arg-type]
    use = pool_use(run.traces, run.snapshots)
    waiting = [one for one, trace in zip(use, run.traces, strict=True) if trace.num_waiting]
    counted = page(load, BlockPool(slots // block_size, block_size))
    stored = sum(one.stored for one in waiting) / len(waiting) / slots
    assert len(waiting) > 50 and stored == pytest.approx(counted.share("tokens"), abs=0.03)
    assert sum(one.requests for one in waiting) / len(waiting) == pytest.approx(counted.at_once, rel=0.05)
