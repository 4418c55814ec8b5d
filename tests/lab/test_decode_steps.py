"""What `decode_steps` refuses before it runs anything, and the turns that several batch sizes take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_llm import open_llm
from workbench.errors import UsageError
from workbench.lab import decode_in_turn, decode_steps, kernels_in_a_decode_step, steps
from workbench.measure.timing import Timing


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"batch": 0}, "batch=0: give a whole number of at least 1"),
        ({"batch": "2"}, "batch='2': give"),
        ({"batch": 1.5}, "batch=1.5: give"),
        ({"batch": 1, "steps": 0}, "steps=0: give"),
    ],
)
def test_counts_that_make_no_step_are_refused(counts: dict[str, Any], words: str) -> None:
    nothing: Any = None
    with pytest.raises(UsageError, match=words):
        decode_steps(nothing, nothing, context=16, **counts)


def test_batch_sizes_take_turns_and_keep_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []

    def decoded(lesson: Any, llm: Any, batch: int, context: int, count: int) -> steps.Decodes:
        order.append(batch)
        assert (context, count) == (64, 3)
        turn: Any = [f"{batch} in turn {len(order)}"]
        return steps.Decodes(turn, Timing((float(len(order)),)))

    monkeypatch.setattr(steps, "decode_steps", decoded)
    nothing: Any = None
    found = decode_in_turn(nothing, nothing, (1, 8), 64, rounds=2, steps=3)
    assert order == [1, 8, 1, 8]
    assert found[1] == steps.Decodes(["1 in turn 1", "1 in turn 3"], Timing((1.0, 3.0)))  # type: ignore[list-item]
    assert found[8].time.seconds == (2.0, 4.0)


class Lessons:
    """As much of a lesson as steps need."""

    def engine(self, llm: Any, **options: Any) -> Any:
        return llm.new_engine(**options)


def test_fusing_and_recording_call_fewer_kernels(folder: Path) -> None:
    lesson: Any = Lessons()
    apart = open_llm(folder, enable_kernel_fusion=False)
    layers = apart.model_config.num_layers
    counts = kernels_in_a_decode_step(lesson, apart)
    assert counts["silu"] == counts["index_copy_"] == layers
    eager = kernels_in_a_decode_step(lesson, open_llm(folder, enforce_eager=True))
    if not eager["silu_mul"]:
        pytest.skip("no C++ kernels here")
    assert eager["silu_mul"] == eager["rope_and_write"] == layers and eager["rms_norm"] == 2 * layers + 1
    assert eager["silu"] == eager["index_copy_"] == 0 and counts["silu_mul"] == counts["rope_and_write"] == 0
    recorded = kernels_in_a_decode_step(lesson, open_llm(folder))
    assert recorded["tape_run"] == 1 and recorded.total() < layers + 20 < eager.total() < counts.total()
