"""Peaks of memory see what is allocated and freed again; attention in tiles never holds all scores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workbench.errors import WorkbenchError
from workbench.measure import attention_growth, peak_memory
from workbench.measure.peak_memory import can_tell, peak_bytes

needs_linux = pytest.mark.skipif(not can_tell(), reason="this system does not tell a process its peak of memory")
MB = 10**6


@needs_linux
def test_the_peak_is_seen_after_it_is_over() -> None:
    def call() -> None:
        torch.ones(20 * MB)

    assert 79 * MB < peak_bytes(call) < 100 * MB
    assert peak_bytes(lambda: None) < 8 * MB, "an earlier peak is forgotten"


def test_where_the_system_does_not_tell_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peak_memory, "_CLEAR", tmp_path / "none" / "clear_refs")
    assert not can_tell()
    with pytest.raises(WorkbenchError, match="does not tell"):
        peak_bytes(lambda: None)


@needs_linux
def test_only_what_is_written_down_holds_all_scores() -> None:
    grown = {one.way: one for one in attention_growth.attention_growth([768], num_heads=8, head_dim=32, repeats=1)}
    scores = 8 * 768 * 768 * 4
    assert grown["written down"].peak > scores
    assert all(grown[way].peak < scores for way in ("SDPA", "the engine's own"))


def test_ways_that_do_not_agree_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention_growth.WAYS, "SDPA", lambda q, k, v: v)
    with pytest.raises(ArithmeticError, match="SDPA gives other results"):
        attention_growth.attention_growth([32], num_heads=2, head_dim=16, repeats=1)
