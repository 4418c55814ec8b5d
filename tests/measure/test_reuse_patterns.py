"""Loads that tell eviction policies apart: what they ask for, and that the policies differ on them as they should."""

from __future__ import annotations

from collections import Counter

import pytest

from workbench.config import EngineConfig
from workbench.errors import UsageError
from workbench.measure.drive import drive
from workbench.measure.reuse_patterns import loop, news, scans
from workbench.measure.workload import Piece, Workload
from workbench.simulate import FixedCost, simulated_engine


def heads(load: Workload) -> list[str]:
    return [ask.pieces[0].name for ask in load.asks if isinstance(ask.pieces[0], Piece)]


def hit_rate(load: Workload, policy: str, blocks: int) -> float:
    config = EngineConfig(
        enable_prefix_caching=True, eviction_policy=policy, num_kv_blocks=blocks, block_size=4, max_model_len=128
    )
    engine = simulated_engine(config, FixedCost(0.01))
    drive(engine, load, 1000)
    engine.pool.check()
    stats = engine.stats()
    return stats["prefix_hit_tokens"] / stats["prefix_query_tokens"]


def test_scans_come_once_and_heads_again_and_again() -> None:
    load = scans(rounds=6, num_heads=3, head_len=12, scan_len=40, question_len=2, seed=0)
    count = Counter(heads(load))
    assert heads(load)[:6] == ["head 0", "head 0", "head 1", "head 1", "head 2", "head 2"]
    assert [count[f"head {number}"] for number in range(3)] == [4, 4, 4]
    assert [load.input_len(index) for index in range(6, 10)] == [14, 40, 14, 40]
    assert all(times == 1 for name, times in count.items() if name.startswith("scan")) and load.users == 1
    questions = [ask.pieces[1] for ask in load.asks if len(ask.pieces) == 2]
    assert len(set(questions)) == len(questions) == 12


def test_news_of_a_day_are_not_asked_for_again() -> None:
    named = heads(news(days=3, per_day=4, num_heads=2, head_len=8, question_len=2, seed=0))
    assert named[:4] == ["day 0, head 0", "day 0, head 1"] * 2
    assert [set(named[day * 4 : day * 4 + 4]) for day in range(3)] == [
        {f"day {day}, head 0", f"day {day}, head 1"} for day in range(3)
    ]


def test_a_loop_goes_round() -> None:
    assert heads(loop(rounds=3, num_heads=2, head_len=8, question_len=2, seed=0)) == ["head 0", "head 1"] * 3


def test_policies_differ_as_they_should() -> None:
    sizes = {"head_len": 12, "question_len": 2, "seed": 0}
    scanned = scans(rounds=20, num_heads=3, scan_len=40, **sizes)
    assert hit_rate(scanned, "lfu", 22) > 3 * hit_rate(scanned, "lru", 22)
    changing = news(days=4, per_day=15, num_heads=3, **sizes)
    assert hit_rate(changing, "lru", 14) > 1.5 * hit_rate(changing, "lfu", 14)
    around = loop(rounds=6, num_heads=4, **sizes)
    # Three blocks a head, and one for the question that is being computed.
    assert [hit_rate(around, "lru", blocks) > 0 for blocks in (10, 11, 13)] == [False, True, True]


@pytest.mark.parametrize("wrong", ["rounds", "num_heads", "head_len", "question_len"])
def test_what_asks_for_nothing_is_refused(wrong: str) -> None:
    sizes = {"rounds": 2, "num_heads": 2, "head_len": 8, "question_len": 2} | {wrong: 0}
    with pytest.raises(UsageError, match=f"{wrong}=0 must be at least 1"):
        loop(**sizes, seed=0)
