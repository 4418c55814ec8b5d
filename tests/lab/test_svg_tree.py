"""The prefix tree as SVG and as a table, read back and held against the index it was taken from."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from random import Random

import pytest

from tests.lab.test_prefix_runs import prompts_of
from tests.lab.test_svg import SVG, marked
from tests.text.test_detokenizer import shared
from workbench.errors import UsageError
from workbench.kv.caching_pool import INDEXES
from workbench.lab.player import Player
from workbench.lab.prefix_runs import PromptRun, run_prompts
from workbench.lab.svg import prefix_tree_frames, prefix_tree_table, render_prefix_tree
from workbench.lab.svg import tree as tree_module
from workbench.lab.svg.canvas import Canvas
from workbench.lab.svg.hatch import slanted
from workbench.lab.svg.tree import MAX_ROWS
from workbench.lab.table import Cell
from workbench.lab.token_text import texts_of
from workbench.lab.tree_snapshot import AGAIN, HIT, NEW


def random_runs(seed: int, index: str, size: int = 4) -> list[PromptRun]:
    prompts = prompts_of(Random(seed), 14, size)
    return run_prompts(prompts, num_blocks=9, block_size=size, prefix_index=index, keep=["p2"])


def check(run: PromptRun) -> Counter[str]:
    """Every node and everything given up is drawn once, under its parent, with its state; returns what was seen."""
    svg = render_prefix_tree(run.tree, run.sentence)
    drawn = {tuple(map(int, group["data-node"].split())): group for group in marked(svg, "node")}
    assert set(drawn) == {node.blocks for node in run.tree.nodes}
    for node in run.tree.nodes:
        group = drawn[node.blocks]
        assert (group["data-state"], group["data-lock"]) == (node.state, str(node.lock))
        assert group["data-mark"] == node.mark
    gone = [tuple(map(int, group["data-gone"].split())) for group in marked(svg, "gone")]
    assert sorted(gone) == sorted(item.blocks for item in run.tree.gone)
    states = Counter(node.state for node in run.tree.nodes)
    return states + Counter(mark for node in run.tree.nodes for mark in node.marks if mark) + Counter(gone=len(gone))


@pytest.mark.parametrize("index", INDEXES)
def test_every_node_is_drawn_once_as_it_is(index: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(5):
        for size in (1, 4):
            for run in random_runs(seed, index, size):
                seen += check(run)
    assert all(seen[what] for what in ("held", "cached", HIT, NEW, AGAIN, "gone")), seen


def test_a_dropped_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run = random_runs(0, "radix")[-1]
    whole = tree_module._rows
    monkeypatch.setattr(tree_module, "_rows", lambda tree: whole(tree)[:-1])
    with pytest.raises(AssertionError):
        check(run)


@pytest.mark.parametrize("index", INDEXES)
def test_the_table_says_the_same(index: str) -> None:
    for run in random_runs(3, index, 1):
        table = prefix_tree_table(run.tree)
        rows = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in table.rows]
        stays = [row for row in rows if row[3] != "evicted"]
        assert sum(int(row[1]) for row in stays) == sum(len(node.blocks) for node in run.tree.nodes)
        told = Counter((row[2], row[3], row[5]) for row in stays)
        assert sum(told.values()) == len(run.tree.nodes)
        for row in stays:
            assert (row[6] == "–") == ("held" in str(row[3]))
        assert sum(int(row[1]) for row in rows if row[3] == "evicted") == len(run.evicted)
        line = sorted(place for node in run.tree.nodes for place in node.leaves if place is not None)
        assert line == list(range(1, run.tree.num_cached + 1))


def test_a_row_hangs_below_its_parent() -> None:
    """Indented where the tree branches, and only there: a chain of any length runs straight down."""
    runs = run_prompts({"A": [1, 2, 3, 4], "B": [1, 2, 7, 8], "C": [1, 2, 3, 9]}, num_blocks=16, block_size=1)
    rows = tree_module._rows(runs[-1].tree)
    depths = {row.node.tokens: (row.depth, row.parent) for row in rows if row.node is not None}
    assert depths == {(1, 2): (1, 0), (3,): (2, 1), (4,): (3, 2), (9,): (3, 2), (7, 8): (2, 1)}
    chain = run_prompts({"A": list(range(100, 140))}, num_blocks=40, block_size=1, prefix_index="hash")[0].tree
    assert {row.depth for row in tree_module._rows(chain)} == {0, 1}
    for number, row in enumerate(rows):
        assert row.parent is None or row.parent < number


TEXTS = {
    "html": "<script>alert('&')</script>",
    "lines": "one\ntwo\ttabs\r\n",
    "control": "\x00\x1b[31m\u202e",
    "한국어": "안녕하세요, 오늘 날씨 어때요?",
    "emoji": "🙂 👩‍👩‍👧‍👦",
    "]]>": "a ]]> b",
}


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("index", INDEXES)
def test_any_text_makes_a_picture(index: str, size: int) -> None:
    prompts = {name: shared().encode(text) for name, text in TEXTS.items()}
    runs = run_prompts(prompts, num_blocks=200, block_size=size, prefix_index=index, texts=texts_of(shared()))
    svg = render_prefix_tree(runs[-1].tree, runs[-1].sentence)
    said = " ".join("".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}title"))
    assert "<script" not in svg and "\n" not in svg and "\x00" not in svg
    if index == "radix":
        flat = said.replace("│", "").replace("…", "")
        assert "alert('&')" in flat and "오늘" in flat and "one↵two⇥" in flat
    assert "<script" not in prefix_tree_table(runs[-1].tree)._repr_html_()


def test_frames_have_one_size_and_say_what_happened() -> None:
    runs = random_runs(1, "radix")
    frames = prefix_tree_frames(runs)
    assert len(frames) == len(runs) == 14 and frames.labels == tuple(run.sentence for run in runs)
    sizes = {re.search(r'height="([\d.]+)"', frame)[1] for frame in frames}  # type: ignore[index]
    assert len(sizes) == 1
    assert Player(frames).height > 0
    with pytest.raises(UsageError, match="no prompt has been sent"):
        prefix_tree_frames([])


def test_of_many_rows_the_rest_is_counted() -> None:
    tree = run_prompts({"A": list(range(400))}, num_blocks=400, block_size=1, prefix_index="hash")[0].tree
    svg = render_prefix_tree(tree)
    assert len(marked(svg, "node")) == MAX_ROWS - 1
    assert f"{401 - MAX_ROWS} more rows are not drawn" in svg
    assert prefix_tree_table(tree).rows[-1][0] == f"{400 - MAX_ROWS} more"


def test_an_empty_index_has_a_picture() -> None:
    tree = run_prompts({"A": [1]}, num_blocks=4, block_size=4)[0].tree
    assert "nothing is cached yet" in render_prefix_tree(tree, "<&>") and prefix_tree_table(tree).rows == []
    assert "1 in use and not full, 3 free of 4" in prefix_tree_table(tree).caption


def test_texts_stay_within_their_columns() -> None:
    prompts = {name: shared().encode(text * 9) for name, text in TEXTS.items()}
    runs = run_prompts(prompts, num_blocks=3000, block_size=1, texts=texts_of(shared()), keep=list(prompts))
    boxes = [(8.0, 470.0)] + [(left, left + room) for _, left, room in tree_module._COLUMNS]
    for group in ET.fromstring(render_prefix_tree(runs[-1].tree)).iter(f"{SVG}g"):
        if "data-node" not in group.attrib:
            continue
        for text, (_, right) in zip(group.iter(f"{SVG}text"), boxes, strict=True):
            assert float(text.attrib["x"]) + 0.9 * tree_module._width(text.text or "") <= right + 14


def test_slanted_lines_stay_within_their_box() -> None:
    for width, height in ((100.0, 20.0), (16.0, 12.0), (5.0, 30.0)):
        canvas = Canvas(200, 200)
        slanted(canvas, 10, 20, width, height)
        places = re.findall(r"[ML]([\d.]+) ([\d.]+)", canvas.svg("", ""))
        assert len(places) >= 4
        for x, y in places:
            assert 10 - 0.1 <= float(x) <= 10 + width + 0.1 and 20 - 0.1 <= float(y) <= 20 + height + 0.1
