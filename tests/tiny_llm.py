"""An LLM over a tiny model folder, and what several tests ask of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPTS = [[5, 6, 7], [8] * 20, [9]]


def open_llm(path: Path, **options: Any) -> LLM:
    return LLM(**{"model": str(path), "device": "cpu", "block_size": 4, "num_kv_blocks": 64, **options})


def assert_empty(llm: LLM) -> None:
    engine = llm.engine
    engine.pool.check()
    assert not engine.has_unfinished() and not engine.scheduler.running and not engine.scheduler.waiting
    assert engine.pool.num_available == engine.pool.num_blocks


def tokens(llm: LLM, prompts: Any = PROMPTS, params: Any = GREEDY) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
