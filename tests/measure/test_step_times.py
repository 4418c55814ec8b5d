"""Steps at chosen points hold what was asked for; points that do not fit are refused. No time is judged."""

from __future__ import annotations

import pytest

from tests.model.tiny import make_tiny
from tests.tiny_llm import assert_empty, open_llm
from workbench import LLM
from workbench.errors import UsageError
from workbench.measure.step_times import Point, step_times


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    path = tmp_path_factory.mktemp("tiny")
    make_tiny("smollm2", path)
    return open_llm(path, num_kv_blocks=128)


@pytest.mark.parametrize("point", [Point(1, 9), Point(4, 30), Point(0, 0, 20), Point(3, 25, 17)])
def test_a_step_holds_the_point(llm: LLM, point: Point) -> None:
    [found] = step_times(llm, [point], repeats=3)
    decodes = [item for item in found.trace.scheduled if item["kind"] == "decode"]
    prompts = [item["num_tokens"] for item in found.trace.scheduled if item["kind"] == "prefill"]
    assert len(decodes) == point.batch and prompts == [point.chunk] * (point.chunk > 0)
    for item in decodes:
        assert abs(item["num_computed_tokens"] + 1 - point.context) <= point.batch + 6
    assert len(found.trace.new_tokens) == point.batch + (point.chunk > 0), "the prompt is computed whole"
    assert len(found.seconds) == 3 and found.trace.duration == sorted(found.seconds)[1]
    assert_empty(llm)


@pytest.mark.parametrize("point", [Point(0, 0, 0), Point(0, 9), Point(-1, 9, 4), Point(2, 0)])
def test_a_point_without_work_is_refused(llm: LLM, point: Point) -> None:
    with pytest.raises(UsageError, match="is no step"):
        step_times(llm, [point])


def test_a_point_that_the_pool_does_not_hold_is_refused(llm: LLM) -> None:
    with pytest.raises(UsageError, match="does not fit into one step"):
        step_times(llm, [Point(30, 40)], repeats=1)
