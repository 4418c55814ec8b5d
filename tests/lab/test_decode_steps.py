"""What `decode_steps` refuses before it runs anything, and the turns that several batch sizes take."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.errors import UsageError
from workbench.lab import decode_in_turn, decode_steps, steps
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
