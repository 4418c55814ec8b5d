"""The diff view of two runs: every request of the step on both sides, what differs marked, the reasons as they are."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from workbench.config import EngineConfig
from workbench.errors import UsageError
from workbench.lab import control, drive, explore, parting_table, render_parting
from workbench.lab.svg.parting import MAX_ROWS
from workbench.lab.table import Cell
from workbench.measure.load import Load
from workbench.measure.workload import Ask, Piece, Workload
from workbench.simulate import FixedCost, Parting, what_if

SVG = "{http://www.w3.org/2000/svg}"
SIDES = ("128 tokens", "whole")


def asks(*triples: tuple[float, int, int]) -> Workload:
    """(arrival, prompt tokens, output tokens)"""
    return Workload(tuple(Ask((Piece(f"own {i}", n),), out, at) for i, (at, n, out) in enumerate(triples)), 0, {})


def parted(workload: Workload, one: dict[str, object], other: dict[str, object]) -> Parting:
    found = what_if(Load(EngineConfig(**one), workload), Load(EngineConfig(**other), workload), FixedCost(0.1, 0.001))
    assert found is not None
    return found


@pytest.fixture
def chunked() -> Parting:
    """Request 0 answers when a prompt of 300 comes: cut to what 128 tokens leave, or whole; 2 comes behind it."""
    budgets = {"max_num_batched_tokens": 128}, {"max_num_batched_tokens": 512, "max_num_seqs": 2}
    return parted(asks((0, 100, 20), (0.3, 300, 5), (0.3, 50, 5)), *budgets)


def texts(group: ET.Element) -> list[str]:
    return [text.text or "" for text in group.iter(f"{SVG}text")]


def groups(svg: str) -> dict[str, ET.Element]:
    found = [group for group in ET.fromstring(svg).iter(f"{SVG}g") if "data-request" in group.attrib]
    named = {group.attrib["data-request"]: group for group in found}
    assert len(named) == len(found), "a request stands once"
    return named


def test_the_table_tells_what_each_run_did_and_why(chunked: Parting) -> None:
    table = parting_table(chunked, SIDES)
    assert table.head == ["", "request", *SIDES]
    rows = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in table.rows]
    assert rows == [
        ["=", "0", "decode: 1 token from 101", "decode: 1 token from 101"],
        ["≠", "1", "prefill: 127 tokens from 0", "prefill: 300 tokens from 0"],
        ["≠", "2", "left out: budget", "left out: max_num_seqs"],
        ["", "tokens", "128", "301"],
        ["", "time", "from 301 ms, takes 228 ms", "from 301 ms, takes 401 ms"],
    ]
    assert [row[2].tone for row in table.rows[:3] if isinstance(row[2], Cell)] == ["decode", "prefill", "quiet"]
    assert f"simulated; step {chunked.step} " in table.caption and chunked.step == 2


def test_the_picture_shows_every_request_once_with_both_texts_and_bars_to_one_scale(chunked: Parting) -> None:
    found = groups(render_parting(chunked, SIDES))
    assert {name: int(group.attrib["data-differs"]) for name, group in found.items()} == {"0": 0, "1": 1, "2": 1}
    for name, (one, other) in chunked.requests().items():
        said = texts(found[name])
        assert one in said and other in said and said[0] == f"{name} {'≠' if one != other else '='}"
    short, long = (float(bar.attrib["width"]) for bar in found["1"].iter(f"{SVG}rect"))
    assert long / short == pytest.approx(300 / 127, rel=0.01)
    assert not list(found["2"].iter(f"{SVG}rect")), "who waits has no bar"
    left = {texts(found[name])[0]: [float(t.attrib["x"]) for t in found[name].iter(f"{SVG}text")] for name in found}
    assert all(max(places) < 960 for places in left.values())


def test_the_picture_says_that_it_is_simulated_and_both_names(chunked: Parting) -> None:
    svg = render_parting(chunked, SIDES)
    root = ET.fromstring(svg)
    said = root.findtext(f"{SVG}desc")
    assert said == "Simulated. Step 2 is the first in which 128 tokens and whole decide differently on 2 requests."
    assert {*SIDES, "step 2", "simulated", "128", "301"} <= set(texts(root))


def test_a_run_that_is_over_says_so() -> None:
    options = EngineConfig(), asks((0, 10, 3)), asks((0, 10, 3), (0.6, 10, 2))
    found = what_if(Load(options[0], options[1]), Load(options[0], options[2]), FixedCost(0.1))
    assert found is not None and found.one is None and found.other is not None
    table = parting_table(found, ("one user", "two users"))
    assert [[str(cell) for cell in row[2:]] for row in table.rows[-2:]] == [
        ["none", "10"],
        ["this run was over", "from 600 ms, takes 100 ms"],
    ]
    assert "not in this step" in texts(groups(render_parting(found))["1"])


def test_of_many_requests_those_that_differ_are_shown_and_the_rest_counted() -> None:
    crowd = asks(*[(0, 4, 9)] * 60, (0.25, 90, 3))
    found = parted(crowd, {"max_num_batched_tokens": 300}, {"max_num_batched_tokens": 300, "batching": "prefill-first"})
    assert len(found.requests()) == 61 and len(found.differences()) == 60
    assert len(groups(render_parting(found))) == MAX_ROWS
    assert "21 more" in texts(ET.fromstring(render_parting(found)))
    assert "21 more" in [row[1] for row in parting_table(found).rows]
    few = parted(crowd, {"max_num_batched_tokens": 300}, {"max_num_batched_tokens": 120})
    assert len(few.differences()) < MAX_ROWS < len(few.requests())
    first = list(groups(render_parting(few)).values())[: len(few.differences())]
    assert all(group.attrib["data-differs"] == "1" for group in first)


@pytest.mark.parametrize(
    ("names", "told"),
    [(("a", "a"), "two different names"), ("ab", "two different names"), (("a",), "two different names")],
)
def test_names_that_tell_nothing_apart_are_refused(chunked: Parting, names: tuple[str, ...], told: str) -> None:
    for draw in (parting_table, render_parting):
        with pytest.raises(UsageError, match=told):
            draw(chunked, names)


def test_runs_that_never_part_have_no_picture() -> None:
    for draw in (parting_table, render_parting):
        with pytest.raises(UsageError, match="two runs must part"):
            draw(None)  # type: ignore[arg-type]


def test_a_reader_moves_through_changes() -> None:
    """As notebook 04 shows it: a control chooses the option in which the second run differs."""
    changes = {"whole": {"enable_chunked_prefill": False}, "prompts first": {"batching": "prefill-first"}}
    load, usual = asks((0, 100, 20), (0.3, 300, 5), (0.3, 150, 5)), {"max_num_batched_tokens": 400}

    def view(change: str) -> str:
        return render_parting(parted(load, usual, {**usual, **changes[change]}), ("usual", change))

    explorer = explore(view, {"change": control("change", choices=tuple(changes))})
    assert drive(explorer) == 2
    assert {change: "left out: prefill_first" in view(change) for change in changes} == {
        "whole": False,
        "prompts first": True,
    }
