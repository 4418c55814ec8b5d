"""Prefix caching seen from outside the engine: what is computed, told, kept, kept apart, forgotten and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.paged_fake import answer_alone, greedy, open_engine
from workbench.engine.engine import Engine
from workbench.engine.replay import replay
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.kv import prefix_index

PROMPT = list(range(10, 22))
"""Three blocks of four tokens."""


def caching(**options: Any) -> Engine:
    return open_engine(**{"enable_prefix_caching": True, **options})


def run(engine: Engine, prompt: list[int] = PROMPT, max_tokens: int = 1, **options: Any) -> list[StepTrace]:
    salt = options.pop("cache_salt", None)
    request_id = engine.add_request(prompt, greedy(max_tokens, **options), cache_salt=salt)
    request = engine.requests[request_id]
    traces = []
    while engine.has_unfinished():
        traces.append(engine.step())
        engine.pool.check()
    if "n" not in options:
        assert request.output_token_ids == answer_alone(prompt, request.params, 100)[0]
    return traces


def computed(traces: list[StepTrace]) -> list[tuple[int, int]]:
    """(start, tokens) of every share."""
    return [(item["num_computed_tokens"], item["num_tokens"]) for trace in traces for item in trace.scheduled]


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_the_last_token_is_always_computed(index: str) -> None:
    engine = caching(prefix_index=index)
    assert computed(run(engine)) == [(0, 12)]
    # All 12 tokens are cached; the block of the last one is computed again, into a block of its own.
    assert computed(run(engine)) == [(8, 4)]
    assert computed(run(engine, [*PROMPT, 1])) == [(12, 1)]
    assert computed(run(engine, PROMPT[:9])) == [(8, 1)]
    assert computed(run(engine, [0, *PROMPT])) == [(0, 13)]
    assert engine.cache is not None
    # The copy of the third block was remapped and freed: nothing is cached twice.
    assert engine.pool.num_cached == 3 + 3 and sorted(engine.cache.index.blocks()) == sorted(
        set(engine.cache.index.blocks())
    )


def test_with_blocks_of_one_token_all_but_the_last_are_taken_over() -> None:
    engine = caching(block_size=1)
    run(engine)
    assert computed(run(engine)) == [(11, 1)]
    assert computed(run(engine, [*PROMPT[:5], 39, *PROMPT[6:]])) == [(5, 7)]


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_a_part_of_a_block_is_copied_and_written_on(index: str) -> None:
    engine = caching(prefix_index=index, prefix_partial_reuse=True)
    run(engine)
    # All but the last token, of whose block the first three are copied.
    assert computed(run(engine)) == [(11, 1)]
    assert computed(run(engine, [*PROMPT[:6], 39, *PROMPT[7:]])) == [(6, 6)]
    assert computed(run(engine, [*PROMPT[:3], 39])) == [(3, 1)]
    assert computed(run(engine, [39, *PROMPT[1:]])) == [(0, 12)]
    stats = engine.stats()
    assert (stats["prefix_hit_tokens"], stats["prefix_hit_blocks"]) == (11 + 6 + 3, 2 + 1)
    # The block that goes on longest is the one that is copied, whichever is newer.
    assert computed(run(engine, [*PROMPT[:6], 39, PROMPT[7], 1])) == [(8, 1)]
    assert computed(run(engine, [*PROMPT[:7], 38])) == [(7, 1)]


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_a_part_may_come_into_view_while_the_step_is_planned(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three blocks are compared, and one of the two is given up for an answer that grows."""
    monkeypatch.setattr(prefix_index, "MAX_PART_CANDIDATES", 2)
    engine = caching(prefix_index=index, prefix_partial_reuse=True, num_kv_blocks=8)
    head = PROMPT[:4]
    for tail in ([1, 2, 3, 4], [5, 0, 0, 0], [6, 0, 0, 0], [1, 2, 3, 4]):  # the first is used last, so it stays longer
        run(engine, [*head, *tail, 39])
    run(engine, [37] * 5)
    engine.add_request([38] * 4 * engine.pool.num_free, greedy(8), "grows")
    engine.step()
    assert engine.pool.num_free == 0
    engine.add_request([*head, 1, 2, 3, 30, 31], greedy(3), "late")
    late = engine.requests["late"]
    trace = engine.step()
    assert trace.blocks["evicted"] == 3 and computed([trace])[1] == (7, 2)
    while engine.has_unfinished():
        engine.step()
        engine.pool.check()
    assert late.output_token_ids == answer_alone(late.prompt_token_ids, late.params, 100)[0]


def test_a_request_may_be_named_like_the_reader_of_a_part() -> None:
    engine = caching(prefix_partial_reuse=True)
    run(engine)
    assert engine.cache is not None
    for block in engine.cache.index.blocks():
        engine.add_request([39, block], greedy(8), f"late reads block {block}")
    engine.step()
    engine.add_request([*PROMPT[:10], 39], greedy(2), "late")
    assert (10, 1) in computed([engine.step()])
    engine.pool.check()
    assert len(engine.pool.tables) == 4, "the reader is gone and the three requests are there"


def test_a_part_is_of_the_same_namespace_and_needs_no_more_room_than_there_is() -> None:
    engine = caching(num_kv_blocks=3, prefix_partial_reuse=True, max_model_len=13)
    run(engine, cache_salt="a")
    assert computed(run(engine))[0] == (0, 12)
    # A pool of three blocks cannot hold both the third block and its copy: all of it is computed.
    assert computed(run(engine))[0][0] == 8


def test_answers_are_cached_too_and_the_trace_tells() -> None:
    engine = caching()
    first = run(engine, max_tokens=9)  # 12 + 9 tokens, the last without KV: five blocks full
    assert first[-1].blocks["cached"] == 5 and first[-1].blocks["free"] == 27 and first[0].cached_tokens == 0
    said = [*PROMPT, *[new["token_id"] for trace in first for new in trace.new_tokens], 5]
    request_id = engine.add_request(said, greedy(1))
    request = engine.requests[request_id]
    trace = engine.step()
    assert trace.cached_tokens == request.num_cached_tokens == 20
    assert computed([trace]) == [(20, 2)]
    stats = engine.stats()
    assert (stats["prefix_queries"], stats["prefix_query_tokens"], stats["prefix_hit_tokens"]) == (2, 12 + 22, 20)
    assert (stats["prefix_query_blocks"], stats["prefix_hit_blocks"]) == (3 + 5, 5)
    assert request.first_scheduled_time is not None


def test_two_that_come_together_compute_the_same_and_keep_one_copy() -> None:
    engine = caching()
    for _ in range(2):
        engine.add_request(PROMPT, greedy(3))
    trace = engine.step()
    assert [item["num_computed_tokens"] for item in trace.scheduled] == [0, 0]
    tables = list(engine.pool.tables.values())
    assert tables[0][:3] == tables[1][:3], "the second reads the blocks of the first from now on"
    assert trace.blocks["shared"] == 3 and trace.blocks["freed"] == 3
    engine.pool.check()


def test_who_is_preempted_finds_its_own_tokens_and_it_is_no_hit() -> None:
    engine = caching(num_kv_blocks=8, block_size=2, max_model_len=17)
    for name, first in (("a", 1), ("b", 2)):
        engine.add_request([first] * 6, greedy(9), name)
    requests = dict(engine.requests)
    traces = []
    while engine.has_unfinished():
        traces.append(engine.step())
        engine.pool.check()
    assert requests["b"].num_preemptions > 0
    back = [item for trace in traces for item in trace.scheduled if item["request_id"] == "b"]
    assert any(item["num_computed_tokens"] == 0 for item in back[:1])
    assert sum(trace.cached_tokens for trace in traces) == 0 == requests["b"].num_cached_tokens
    assert engine.stats()["prefix_queries"] == 2


@pytest.mark.parametrize("index", ["radix", "hash"])
def test_salts_keep_apart_and_the_same_salt_meets(index: str) -> None:
    engine = caching(prefix_index=index)
    run(engine, cache_salt="a")
    for salt, start in (("b", 0), (None, 0), ("a", 8), ("", 8), ("b", 8)):
        assert computed(run(engine, cache_salt=salt))[0][0] == start, salt


def test_other_weights_meet_nothing_until_the_old_are_back() -> None:
    engine = caching()
    engine.use_kv_fields(weights="1")
    run(engine)
    engine.use_kv_fields(weights="2")
    assert computed(run(engine)) == [(0, 12)]
    engine.use_kv_fields(weights="1")
    assert computed(run(engine)) == [(8, 4)]
    engine.add_request(PROMPT, greedy(1))
    with pytest.raises(UsageError, match="1 requests are unfinished"):
        engine.use_kv_fields(weights="3")


def test_a_reset_forgets_everything_and_says_so() -> None:
    engine = caching()
    run(engine)
    assert engine.pool.num_cached == 3
    assert engine.reset_prefix_cache() is True
    assert engine.pool.num_cached == 0 and engine.pool.num_free == engine.pool.num_blocks
    assert computed(run(engine)) == [(0, 12)]


def test_a_reset_amid_a_request_takes_nothing_from_it_and_lets_nobody_find_it() -> None:
    engine = caching()
    engine.add_request(PROMPT, greedy(9, n=2), "x")
    engine.step()
    assert engine.reset_prefix_cache() is True
    engine.pool.check()
    while engine.has_unfinished():
        engine.step()
        engine.pool.check()
        assert engine.pool.num_cached == 0, "what was computed before the reset, and what follows it, is not kept"
    assert computed(run(engine)) == [(0, 12)]


def test_prompt_logprobs_are_computed_and_not_taken_over() -> None:
    engine = caching()
    run(engine)
    assert computed(run(engine, prompt_logprobs=0)) == [(0, 12)]


def test_forks_share_what_is_cached_and_ask_once() -> None:
    engine = caching()
    run(engine)
    traces = run(engine, [*PROMPT, 1, 2], max_tokens=2, n=3)[:2]
    # The first computes from the cached head on; the others take the prompt from it, save for its last token.
    assert computed(traces) == [(12, 2), (14, 1), (13, 1), (13, 1)]
    assert engine.stats()["prefix_queries"] == 2 and sum(trace.cached_tokens for trace in traces) == 12


@pytest.mark.parametrize("on", [True, False])
def test_every_answer_knows_when_it_was_first_scheduled(on: bool) -> None:
    engine = caching(enable_prefix_caching=on)
    engine.add_request(PROMPT, greedy(3, n=3))
    answers = list(engine.requests.values())
    engine.step()
    engine.clock.advance_to(1.0)
    engine.step()
    assert [answer.first_scheduled_time for answer in answers] == [0.0, 1.0, 1.0]


def test_cached_blocks_are_given_up_when_room_is_needed() -> None:
    engine = caching(num_kv_blocks=4)
    run(engine)
    traces = run(engine, list(range(12)))
    assert sum(trace.blocks["evicted"] for trace in traces) == 2
    # The tail went first: the first block of the old prompt is still there.
    assert computed(run(engine)) == [(4, 8)]


def test_refusals() -> None:
    with pytest.raises(UsageError, match="cache_salt='a' has no effect without enable_prefix_caching=True"):
        open_engine().add_request(PROMPT, greedy(1), cache_salt="a")
    engine = caching()
    with pytest.raises(UsageError, match="cache_salt=3 must be text, not a int"):
        engine.add_request(PROMPT, greedy(1), cache_salt=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"cache_salt='a\\udc00': character 1 is half of a surrogate pair"):
        engine.add_request(PROMPT, greedy(1), cache_salt="a\udc00")
    assert not engine.has_unfinished() and not engine.scheduler.waiting
    with pytest.raises(UsageError, match="kv_fields: weights=3 must be text, not a int"):
        engine.use_kv_fields(weights=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"kv_fields: weights='\\ud800': character 0 is half of a surrogate pair"):
        engine.use_kv_fields(weights="\ud800")
    run(engine)
    wide = Engine(engine.config, engine.runner)
    with pytest.raises(UsageError, match="position 1 of the prompt: token id 4294967296 is too large"):
        wide.add_request([1, 1 << 32], greedy(1))


def test_without_prefix_caching_nothing_of_it_is_told() -> None:
    engine = open_engine()
    traces = run(engine)
    assert list(traces[0].blocks) == ["allocated", "freed", "shared", "swapped_out", "swapped_in", "evicted", "free",
                                      "total"]  # fmt: skip
    assert not any(name.startswith("prefix") or "cached" in name for name in engine.stats())
    assert engine.reset_prefix_cache() is True and engine.step().inputs == []


def test_a_recorded_run_replays(tmp_path: Path) -> None:
    engine = caching(num_kv_blocks=8)
    with engine.record(tmp_path / "run.jsonl"):
        for salt in (None, "a", "a"):
            run(engine, max_tokens=5, cache_salt=salt)
        engine.reset_prefix_cache()
        run(engine, max_tokens=5)
        engine.use_kv_fields(weights="others")
        run(engine, max_tokens=5)
    steps = list(replay(tmp_path / "run.jsonl"))
    assert sum(step.recorded.cached_tokens for step in steps) == 8
    assert not any(step.differences() for step in steps)
    # Without the cache the same run computes more.
    cold = list(replay(tmp_path / "run.jsonl", enable_prefix_caching=False))
    assert any(step.differences() for step in cold) and sum(step.replayed.cached_tokens for step in cold) == 0


def test_a_recording_that_began_warm_says_so(tmp_path: Path) -> None:
    engine = caching()
    run(engine)
    with engine.record(tmp_path / "run.jsonl"):
        run(engine)
    with pytest.raises(UsageError, match="was recorded with 3 blocks cached before its first step"):
        list(replay(tmp_path / "run.jsonl"))
    assert list(replay(tmp_path / "run.jsonl", enable_prefix_caching=False))
