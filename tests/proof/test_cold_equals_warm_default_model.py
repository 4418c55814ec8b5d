"""With and without prefix caching the same tokens from the default model; see tests/test_cold_equals_warm.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proof.same_tokens import Comparison
from tests.test_cold_equals_warm import open_pairs, run, shown
from workbench import LLM


@pytest.mark.proof
@pytest.mark.timeout(20_000)
def test_two_hundred_schedules(smollm2: LLM, proof: Any) -> None:
    tally = Comparison()
    seen = run(open_pairs(smollm2), range(200), tally)
    assert all(seen.values()), seen
    proof.report("cold = warm, token for token, default model", shown(seen, tally))
