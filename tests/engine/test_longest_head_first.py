"""``lpm``: the longest cached head goes first, one of a group warms the cache for the others, and nobody starves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.paged_fake import greedy, open_engine
from workbench.engine import policies
from workbench.engine.engine import Engine
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError


def lpm(**options: Any) -> Engine:
    sizes = {"num_kv_blocks": 400, "max_model_len": 200, "max_num_batched_tokens": 200, "max_num_seqs": 16}
    return open_engine(**{**sizes, "enable_prefix_caching": True, "scheduling_policy": "lpm", **options})


def drain(engine: Engine) -> list[StepTrace]:
    traces = []
    while engine.has_unfinished():
        traces.append(engine.step())
        engine.pool.check()
    return traces


def order(traces: list[StepTrace]) -> list[str]:
    """Requests by the step of their first share, and within a step as they were served."""
    return list(dict.fromkeys(item["request_id"] for trace in traces for item in trace.scheduled))


def prefilled(traces: list[StepTrace]) -> int:
    return sum(item["num_tokens"] for trace in traces for item in trace.scheduled if item["kind"] == "prefill")


HEAD = [number % 40 for number in range(64)]


def test_the_longest_cached_head_goes_first() -> None:
    engine = lpm(max_num_seqs=1)
    engine.add_request(HEAD, greedy(1))
    drain(engine)
    for name, common in (("none", 0), ("some", 20), ("most", 60), ("half", 32)):
        engine.add_request([*HEAD[:common], *[39] * (70 - common)], greedy(1), name)
    assert order(drain(engine)) == ["most", "half", "some", "none"]


def test_who_waits_longer_goes_first_in_the_end() -> None:
    """A stream of requests with long cached heads does not keep one without for ever."""
    engine = lpm(max_num_seqs=1)
    engine.add_request(HEAD, greedy(1))
    drain(engine)
    engine.runner.during = lambda plan: engine.clock.advance(0.1)
    engine.add_request([39] * 10, greedy(1), "none")
    served = []
    for number in range(40):
        engine.add_request([*HEAD, number], greedy(1), f"hit {number}")
        served += [item["request_id"] for item in engine.step().scheduled]
        if "none" in served:
            break
    # 64 cached tokens are worth 0.64 s of waiting.
    assert 5 <= len(served) <= 9


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_one_of_a_group_goes_first_and_warms_the_cache(index: str) -> None:
    computed = {}
    for policy in ("fcfs", "lpm"):
        engine = lpm(scheduling_policy=policy, prefix_index=index, max_num_batched_tokens=2000)
        for number in range(16):
            engine.add_request([*HEAD, number, 1], greedy(2), f"r{number}")
        first = engine.step()
        if policy == "lpm":
            assert [item["request_id"] for item in first.scheduled] == ["r0"]
            assert {skip["reason"] for skip in first.skipped} == {"prefix_wait"} and len(first.skipped) == 15
        computed[policy] = prefilled([first, *drain(engine)])
    assert computed == {"fcfs": 16 * 66, "lpm": 66 + 15 * 2}


def test_the_group_waits_while_its_head_is_computed_in_pieces_and_others_go_on() -> None:
    engine = lpm(long_prefill_token_threshold=16)
    for name in ("a", "b"):
        engine.add_request([*HEAD, ord(name) % 40], greedy(2), name)
    engine.add_request([39] * 8, greedy(2), "other")
    traces = drain(engine)
    assert order(traces[:1]) == ["a", "other"]
    waited = [trace for trace in traces if {"request_id": "b", "reason": "prefix_wait"} in trace.skipped]
    assert len(waited) == 3
    # 48 tokens are cached by then; to wait for 16 more is not worth it.
    assert prefilled(traces) == 65 + 8 + (65 - 48)


def test_a_short_head_another_salt_or_a_long_own_one_is_not_waited_for() -> None:
    engine = lpm()
    short = HEAD[: policies.WARMING_TOKENS - 4]
    engine.add_request([*short, 1, 1], greedy(1), "a")
    engine.add_request([*short, 2, 2], greedy(1), "b")
    assert order([engine.step()]) == ["a", "b"]
    engine.add_request([*HEAD, 1], greedy(1), "c", cache_salt="c")
    engine.add_request([*HEAD, 2], greedy(1), "d", cache_salt="d")
    assert order([engine.step()]) == ["c", "d"]
    engine.add_request([*HEAD, 7], greedy(1), "e", cache_salt="c")
    engine.add_request([*HEAD, 8], greedy(1), "f", cache_salt="c")
    assert order([engine.step()]) == ["e", "f"], "their head is cached already"


def test_when_the_warming_request_is_aborted_another_takes_its_part() -> None:
    engine = lpm(max_num_batched_tokens=16)
    for number in range(3):
        engine.add_request([*HEAD, number, 1], greedy(1), f"r{number}")
    assert order([engine.step()]) == ["r0"]
    engine.abort("r0")
    traces = drain(engine)
    assert order(traces) == ["r1", "r2"] and traces[0].cached_tokens == 16


def test_with_a_long_queue_it_takes_them_as_they_came() -> None:
    engine = lpm(max_num_seqs=1, num_kv_blocks=4000)
    engine.add_request(HEAD, greedy(1))
    drain(engine)
    for number in range(policies.LPM_QUEUE_LIMIT):
        engine.add_request([number % 40] * 3, greedy(1), f"r{number}")
    engine.add_request([*HEAD, 1], greedy(1), "hit")
    assert order([engine.step()]) == ["r0"], "129 wait: in order of arrival"
    assert order([engine.step()]) == ["hit"], "128 wait: the longest head first"
    engine.add_request([*HEAD, 2], greedy(1), "hit 2")
    engine.add_request([*HEAD, 3], greedy(1), "hit 3")
    assert order([engine.step()]) == ["r1"]


def test_it_needs_a_cache() -> None:
    with pytest.raises(UsageError, match="has no effect without enable_prefix_caching=True"):
        lpm(enable_prefix_caching=False)


def test_who_could_take_nothing_over_does_not_wait() -> None:
    """Log probabilities of a prompt need all of it computed."""
    engine = lpm()
    engine.add_request([*HEAD, 1], greedy(1), "a")
    engine.add_request([*HEAD, 2], greedy(1, prompt_logprobs=0), "b")
    assert order([engine.step()]) == ["a", "b"]


def test_nobody_waits_for_one_whose_blocks_were_reset() -> None:
    engine = lpm(long_prefill_token_threshold=16)
    engine.add_request([*HEAD, 1], greedy(1), "a")
    engine.step()
    assert engine.reset_prefix_cache()
    engine.add_request([*HEAD, 2], greedy(1), "b")
    engine.add_request([*HEAD, 3], greedy(1), "c")
    trace = engine.step()
    # What a computes is not kept; what b computes is.
    assert order([trace]) == ["a", "b"]
    assert trace.skipped == [{"request_id": "c", "reason": "prefix_wait"}]
    drain(engine)
