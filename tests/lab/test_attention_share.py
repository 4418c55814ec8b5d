"""Attention's share of a step: with attention made slow on purpose, and by the arithmetic of Amdahl."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_llm import open_llm
from workbench.errors import UsageError
from workbench.lab import attention_share
from workbench.lab.attention_share import AttentionShare
from workbench.measure.timing import Timing


class OnTiny:
    """As much of a lesson as steps need."""

    def engine(self, llm: Any, **options: Any) -> Any:
        return llm.new_engine(**options)


def test_slow_attention_is_nearly_all_of_a_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lesson: Any = OnTiny()
    llm = open_llm(folder, enforce_eager=True)
    backend = type(llm.runner.decoder.attention)
    own, layers = backend.attend, llm.model_config.num_layers

    def slow(self: Any, *inputs: Any) -> Any:
        time.sleep(0.05)
        return own(self, *inputs)

    monkeypatch.setattr(backend, "attend", slow)
    found = attention_share(lesson, llm, 2, 20, steps=3)
    assert backend.attend is slow, "what was there is back"
    assert len(found.attention.seconds) == len(found.step.seconds) == 3
    assert all(
        0.05 * layers <= own < step for own, step in zip(found.attention.seconds, found.step.seconds, strict=True)
    )
    assert found.share > 0.5


def test_only_what_is_called_can_be_timed(folder: Path) -> None:
    lesson: Any = OnTiny()
    with pytest.raises(UsageError, match="enforce_eager=True"):
        attention_share(lesson, open_llm(folder), 1, 8)


def test_a_kernel_wins_no_more_than_its_share() -> None:
    found = AttentionShare(Timing((1.0, 2.0, 90.0)), Timing((5.0, 10.0, 100.0)))
    assert found.share == pytest.approx(0.2), "one slow step does not count more"
    assert found.faster(2) == pytest.approx(1 / 0.9) and found.faster(1) == pytest.approx(1)
    assert found.faster(1e12) == pytest.approx(1.25)
