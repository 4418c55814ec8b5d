"""The simulated tile: jobs keep their order, a unit does one at a time, and overlap is worth what rates say."""

from __future__ import annotations

from itertools import pairwise

import pytest

from workbench.errors import UsageError
from workbench.simulate.tile_pipeline import SPECIAL, TENSOR, UNITS, Timeline, job_seconds, simulate_tile

H100, A100 = UNITS["h100"], UNITS["a100"]
WAYS = [{"warpgroups": 1}, {"warpgroups": 2}, {"ahead": True}, {"warpgroups": 2, "ahead": True}]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_every_order_is_kept(way: dict, dim: int) -> None:
    run = simulate_tile(H100, head_dim=dim, blocks=5, **way)
    at = {(job.warpgroup, job.block, job.name): job for job in run.jobs}
    assert len(at) == len(run.jobs) == 3 * 5 * way.get("warpgroups", 1)
    for (group, block, name), job in at.items():
        if name != "QK":
            before = "QK" if name == "exp" else "exp"
            assert at[group, block, before].end <= job.begin
        if block and name != "QK":
            assert at[group, block - 1, name].end <= job.begin
    for unit in (TENSOR, SPECIAL):
        jobs = sorted((job for job in run.jobs if job.unit == unit), key=lambda job: job.begin)
        assert all(one.end <= other.begin for one, other in pairwise(jobs)), "a unit does two jobs at once"


def test_in_order_the_units_take_turns() -> None:
    seconds = job_seconds(H100, 128)
    run = simulate_tile(H100, head_dim=128, blocks=7)
    assert run.seconds == pytest.approx(7 * sum(seconds.values()))
    assert run.busy(TENSOR) + run.busy(SPECIAL) == pytest.approx(1)
    assert run.busy(TENSOR) == pytest.approx(2 * seconds["QK"] / sum(seconds.values()))


def test_rates_are_those_of_the_paper() -> None:
    seconds = job_seconds(H100, 128)
    # Shah et al. 2024: at head size 128 exponentials take about half as long as both products.
    assert seconds["exp"] / (seconds["QK"] + seconds["PV"]) == pytest.approx(0.5, abs=0.02)
    assert job_seconds(A100, 128)["exp"] / (2 * job_seconds(A100, 128)["QK"]) == pytest.approx(0.25, abs=0.02)
    assert "989 TFLOP/s" in str(H100) and "3.9 T exponentials/s" in str(H100)


def test_overlap_fills_the_tensor_cores() -> None:
    def busy(**way: int | bool) -> float:
        return simulate_tile(H100, head_dim=128, blocks=64, **way).busy(TENSOR)

    assert busy() == pytest.approx(0.67, abs=0.01)
    assert busy(warpgroups=2) > 0.99 and busy(ahead=True) > 0.99


def test_a_block_ahead_of_slow_exponentials_waits_for_their_scores() -> None:
    """Two places for scores: with exponentials far slower than products the third QK waits for the first exp."""
    slow = UNITS["h100"].__class__("slow", 989e12, 0.39e12, 132, "made up")
    run: Timeline = simulate_tile(slow, head_dim=64, blocks=4, ahead=True)
    at = {(job.block, job.name): job for job in run.jobs}
    assert at[1, "QK"].begin < at[0, "exp"].end <= at[2, "QK"].begin


@pytest.mark.parametrize("change", [{"head_dim": 0}, {"blocks": 0}, {"warpgroups": 1.5}])
def test_what_cannot_be_is_refused(change: dict) -> None:
    with pytest.raises(UsageError, match=str(next(iter(change.values())))):
        simulate_tile(H100, **change)
