"""Tables drawn from traces and pools: what they say, checked against runs of the real scheduler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workbench.config import EngineConfig
from workbench.engine.clock import VirtualClock
from workbench.engine.engine import Engine
from workbench.kv.caching_pool import CachingPool
from workbench.kv.pool import BlockPool
from workbench.lab import Cell, Table, block_tables, course_map, glossary, holders, pool_map, step_table, timeline
from workbench.lab.course import notebooks, terms
from workbench.plan import StepPlan, StepResult
from workbench.sampling_params import SamplingParams


class Fives:
    """A runner that always samples token 5: the tables show decisions, and those need no model."""

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult([5 if item.samples else None for item in plan.scheduled])


def run(prompts: dict[str, int], num_output: int, **limits: int):
    """The traces of a run of prompts of these lengths, and the holders of each block after each step."""
    config = EngineConfig(block_size=4, max_model_len=64, enable_prefix_caching=False, **limits)
    engine = Engine(config, Fives(), clock=VirtualClock())
    for name, length in prompts.items():
        engine.add_request([1] * length, SamplingParams(max_tokens=num_output), request_id=name)
    traces, snapshots = [], []
    while engine.has_unfinished():
        traces.append(engine.step())
        snapshots.append(holders(engine.pool))
    return traces, snapshots


def texts(table: Table) -> list[list[str]]:
    return [[cell.text if isinstance(cell, Cell) else str(cell) for cell in row] for row in table.rows]


def test_timeline_of_a_chunked_prompt():
    traces, _ = run({"A": 10}, 3, num_kv_blocks=8, max_num_batched_tokens=4)
    table = timeline(traces)
    assert list(table.head) == ["step", "0", "1", "2", "3", "4"]
    assert texts(table) == [
        ["A", "p4", "p4", "p2*", "d", "d!"],
        ["tokens", "4", "4", "2", "1", "1"],
        ["blocks", "1", "2", "3", "3", "0"],
    ]
    assert "waits" not in table.caption
    assert "finished" in table.caption


def test_timeline_of_a_preemption():
    traces, snapshots = run({"A": 7, "B": 7}, 4, num_kv_blocks=5, max_num_batched_tokens=64)
    table = timeline(traces)
    rows = {row[0]: row[1:] for row in texts(table)}
    assert rows["A"][:4] == ["p7*", "d", "d", "d!"]
    assert rows["B"] == ["p7*", "d", "x", "w", "r9*", "d!"]
    assert rows["blocks"] == [str(sum(map(bool, held))) for held in snapshots]
    assert {"preempted", "waits", "again"} <= set(re.findall(r"\w+", table.caption))


def test_step_table_says_why_a_request_waits():
    traces, _ = run({"A": 4, "B": 4}, 2, num_kv_blocks=8, max_num_seqs=1)
    first, *_, last = texts(step_table(traces))
    assert first[1:4] == ["A: tokens 0–3 (prefill)", "B: max_num_seqs", "A"]
    assert last[1] == "B: token 4 (decode)"
    assert last[4] == "B (length)"
    assert last[-1] == "8 of 8"


def test_an_idle_step_says_so():
    engine = Engine(EngineConfig(num_kv_blocks=2, max_model_len=8), Fives(), clock=VirtualClock())
    assert texts(step_table([engine.step()]))[0][1] == "nothing"


def test_pool_map_and_block_tables():
    pool = BlockPool(4, 16)
    pool.open("A")
    pool.grow("A", 2)
    pool.open("B")
    pool.share("B", pool.tables["A"][:1])
    assert holders(pool) == ["A+B", "A", "", ""]
    assert texts(pool_map([holders(pool)])) == [
        ["block 0", "A+B"],
        ["block 1", "A"],
        ["block 2", "·"],
        ["block 3", "·"],
    ]
    assert texts(block_tables(pool)) == [["A", "0 1", "2"], ["B", "0", "1"], ["free", "2 3", "2"]]


def test_block_tables_tell_what_is_only_cached():
    pool = CachingPool(4, 2)
    for name, tokens in (("A", [1, 2, 3]), ("B", [7, 7])):
        pool.enroll(name)
        pool.open(name)
        pool.grow(name, pool.blocks_for(len(tokens)))
        pool.publish(name, tokens, len(tokens))
    pool.release("A")  # its full block stays cached, the other is free again
    assert texts(block_tables(pool)) == [["B", "2", "1"], ["cached", "0", "1"], ["free", "1 3", "2"]]


def test_text_and_html_say_the_same():
    table = Table(["name", "한국어"], [[Cell("<x>", "alert"), "선점"]], "a & b")
    assert repr(table) == "name  한국어\n----  ------\n<x>   선점\na & b"
    page = table._repr_html_()
    assert "&lt;x&gt;" in page
    assert "a &amp; b" in page
    assert "<x>" not in page


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="row 1 has 1 cells and the head has 2"):
        Table(["a", "b"], [["1", "2"], ["3"]])


def test_glossary():
    entries = terms()
    assert len(entries) >= 40
    assert len({entry.term for entry in entries}) == len(entries)
    numbers = {notebook.name[:2] for notebook in notebooks()}
    for entry in entries:
        assert re.search("[가-힣]", entry.korean), entry.term
        assert entry.meaning.endswith("."), entry.term
        assert entry.notebook in numbers, entry.term
    assert "선점" in glossary()._repr_html_()


def test_the_map_knows_what_is_here(tmp_path: Path):
    (tmp_path / "02_batching.ipynb").touch()
    rows = texts(course_map(tmp_path))
    assert [row[0][:2] for row in rows] == [f"{number:02}" for number in range(18)]
    assert [row[0] for row in rows if row[2] == "here"] == ["02_batching"]
