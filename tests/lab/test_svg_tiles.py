"""Pictures of tiles and of the simulated pipeline: every visit once, the legend, refusals; figures as a table."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import NamedTuple

import pytest

from kernels.compile import table as agreed
from workbench.errors import UsageError
from workbench.lab import (
    Player,
    agreed_figures,
    control,
    drive,
    explore,
    made_table,
    render_pipeline,
    tile_frames,
    tile_table,
)
from workbench.lab.svg.tiles import render_tiles
from workbench.simulate.tile_pipeline import UNITS, simulate_tile

SVG = "{http://www.w3.org/2000/svg}"


class Seen(NamedTuple):
    first: int
    last: int
    start: int
    stop: int
    masked: bool


VISITS = [Seen(4, 7, 0, 4, False), Seen(4, 7, 4, 8, True), Seen(0, 3, 0, 4, True)]


def kinds(svg: str) -> list[str]:
    return [group.get("data-kind", "") for group in ET.fromstring(svg).iter(f"{SVG}g") if group.get("data-kind")]


def test_cells_fill_in_the_order_of_visits() -> None:
    frames = tile_frames(VISITS, 8)
    assert [kinds(frame) for frame in frames] == [
        ["open"] * 4,
        ["open", "open", "whole", "open"],
        ["open", "open", "whole", "edge"],
        ["edge", "skipped", "whole", "edge"],
    ]
    assert frames.labels[2] == "visit 2 of 3: queries 4–7, keys 4–7, an edge: masked"
    assert drive(Player(frames, description="visit")) == 4


def test_a_tile_that_is_done_skips_the_rest() -> None:
    visits = [Seen(0, 3, 0, 4, True), Seen(4, 7, 4, 8, True)]
    assert kinds(render_tiles(visits, 8, 1)) == ["edge", "skipped", "open", "open"]


def test_the_table_says_the_same() -> None:
    shown = tile_table(VISITS, 8)
    assert [[getattr(cell, "text", cell) for cell in row] for row in shown.rows] == [
        ["0–3", "◩", "·"],
        ["4–7", "■", "◩"],
    ]
    assert "3 visits, 1 whole and 2 at an edge" in shown.caption


def test_a_last_block_that_is_not_full_ends_with_the_keys() -> None:
    root = ET.fromstring(render_tiles([Seen(0, 5, 0, 4, True), Seen(0, 5, 4, 8, True)], 6))
    cells = [group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g") if group.get("data-kind")]
    widths = [float(cell.get("width")) for cell in cells if cell is not None]
    assert widths == pytest.approx([200, 100])


def test_without_visits_there_is_nothing_to_draw() -> None:
    with pytest.raises(UsageError, match="no tile visited"):
        tile_frames([], 8)


def test_the_pipeline_draws_every_job() -> None:
    run = simulate_tile(UNITS["h100"], blocks=3, warpgroups=2)
    root = ET.fromstring(render_pipeline({"ping-pong": run}, "simulated"))
    bars = [group for group in root.iter(f"{SVG}g") if group.get("data-job")]
    assert len(bars) == len(run.jobs) and {bar.get("data-warpgroup") for bar in bars} == {"0", "1"}
    assert "tensor cores busy" in root.findtext(f"{SVG}desc", "")


def test_pipelines_that_cannot_be_drawn() -> None:
    with pytest.raises(UsageError, match="no run"):
        render_pipeline({})
    with pytest.raises(UsageError, match="at most 2 warpgroups"):
        render_pipeline({"three": simulate_tile(UNITS["h100"], blocks=2, warpgroups=3)})


def test_figures_come_from_the_table_of_this_triton() -> None:
    [one] = agreed_figures("flash_attention.flash-sm90-d128-bf16-desc")
    rows = agreed.load(agreed.path_for(agreed.versions()[-1]))["flash_attention.flash-sm90-d128-bf16-desc"]
    assert one["registers"] == rows["sm_90"]["registers"] and one["arch"] == "sm_90"
    shown = made_table([one | {"local_bytes": 8}])
    rows = dict(shown.rows)  # type: ignore[arg-type]
    assert [*shown.head] == ["", "sm_90 (H100, H200)"]
    assert rows["registers"] == one["registers"] and rows["spilled to local memory"] == ("8 B", "alert")
    assert "HGMMA" in rows["matrix instructions"] and rows["warps held"].endswith("of 64")
    with pytest.raises(UsageError, match="no kernel in the table"):
        agreed_figures("nothing.*")


def test_every_state_of_the_notebooks_view_can_be_drawn() -> None:
    def picture(chip: str, dim: int) -> str:
        ways = {"in order": {}, "ping-pong": {"warpgroups": 2}, "a block ahead": {"ahead": True}}
        runs = {name: simulate_tile(UNITS[chip], head_dim=dim, blocks=6, **way) for name, way in ways.items()}
        return render_pipeline(runs, f"simulated: {chip}, {dim}")

    choices = {"chip": control("chip", choices=("h100", "a100")), "dim": control("head size", choices=(128, 64, 256))}
    assert drive(explore(picture, choices, height=370)) == 6
    assert "64 rows" in picture("h100", 128) and "128 rows" in picture("h100", 128)
