"""What `decode_steps` refuses before it runs anything."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.errors import UsageError
from workbench.lab import decode_steps


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
