"""How a request ends: stop tokens, end of sequence, lengths, and an abort in every state it can be in."""

from __future__ import annotations

import pytest

from tests.engine.paged_fake import answer_alone, greedy, open_engine
from workbench.engine.engine import Engine
from workbench.engine.request import Request, Status
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.plan import StepPlan
from workbench.sampling_params import SamplingParams

PROMPT = [3, 1, 4, 1, 5]
ANSWER, _ = answer_alone(PROMPT, greedy(12), limit=100)
"""What the fake model says after PROMPT."""


def run(params: SamplingParams, eos: tuple[int, ...] = (), **options: int) -> Request:
    engine = open_engine(eos, **options)
    request = engine.requests[engine.add_request(PROMPT, params)]
    while engine.has_unfinished():
        engine.step()
    assert engine.pool.num_free == engine.pool.num_blocks
    engine.pool.check()
    return request


def first_at(index: int) -> int:
    """A token of the answer that does not come before ``index``."""
    assert ANSWER.index(ANSWER[index]) == index, "the fake model repeats itself here: take another index"
    return ANSWER[index]


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 12])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    request = run(greedy(max_tokens))
    assert (request.output_token_ids, request.finish_reason) == (ANSWER[:max_tokens], "length")


def test_without_max_tokens_the_context_is_the_end() -> None:
    request = run(greedy(None), max_model_len=11)
    assert (request.num_tokens, request.finish_reason) == (11, "length")


def test_a_stop_token_ends_and_is_kept() -> None:
    request = run(greedy(12, stop_token_ids=[first_at(3)]))
    assert (request.output_token_ids, request.finish_reason) == (ANSWER[:4], "stop")


def test_any_of_several_stop_tokens_ends() -> None:
    request = run(greedy(12, stop_token_ids=[first_at(3), first_at(2)]))
    assert (request.output_token_ids, request.finish_reason) == (ANSWER[:3], "stop")


def test_the_end_of_sequence_ends() -> None:
    request = run(greedy(12), eos=(first_at(2), first_at(3)))
    assert (request.output_token_ids, request.finish_reason) == (ANSWER[:3], "stop")


def test_ignore_eos_passes_over_it_but_not_over_stop_tokens() -> None:
    assert run(greedy(12, ignore_eos=True), eos=(first_at(2),)).output_token_ids == ANSWER
    request = run(greedy(12, ignore_eos=True, stop_token_ids=[first_at(3)]), eos=(first_at(2),))
    assert (request.output_token_ids, request.finish_reason) == (ANSWER[:4], "stop")


@pytest.mark.parametrize(("min_tokens", "length"), [(0, 3), (3, 3), (4, 12)])
def test_min_tokens_forbids_an_earlier_end(min_tokens: int, length: int) -> None:
    """The fake model knows nothing of min_tokens and says its third token anyway: the engine must not stop there."""
    assert run(greedy(12, min_tokens=min_tokens), eos=(first_at(2),)).num_output_tokens == length


def test_a_stop_token_in_last_place_is_a_stop() -> None:
    assert run(greedy(3, stop_token_ids=[first_at(2)])).finish_reason == "stop"


def test_a_stop_token_in_the_prompt_ends_nothing() -> None:
    assert run(greedy(4, stop_token_ids=[4])).num_output_tokens >= 1


# Aborts.


def crowded() -> Engine:
    """Four requests in a pool for two: a and b run, c was preempted, d has not begun."""
    engine = open_engine(num_kv_blocks=4, block_size=2, max_num_seqs=3)
    for name, length in (("a", 2), ("b", 2), ("c", 2), ("d", 1)):
        engine.add_request([ord(name) % 40] * length, greedy(5), name)
    engine.step()
    assert engine.step().preempted == ["c"]
    return engine


def drain(engine: Engine) -> dict[str, str]:
    ended: dict[str, str] = {}
    while engine.has_unfinished():
        trace = engine.step()
        engine.pool.check()
        ended |= {entry["request_id"]: entry["reason"] for entry in trace.finished}
    assert engine.pool.num_free == engine.pool.num_blocks
    return ended


@pytest.mark.parametrize("victim", ["a", "b", "c", "d"])
def test_abort_running_preempted_and_waiting(victim: str) -> None:
    engine = crowded()
    request = engine.requests[victim]
    assert engine.abort(victim)
    engine.pool.check()
    assert (request.status, request.finish_reason, request.block_table) == (Status.FINISHED, "abort", [])
    assert victim not in engine.pool.tables and victim not in engine.requests
    assert not engine.abort(victim), "a second time there is nothing to abort"
    assert drain(engine) == {**dict.fromkeys("abcd", "length"), victim: "abort"}


def test_abort_everything_at_once() -> None:
    engine = crowded()
    for name in "dbca":
        assert engine.abort(name)
        engine.pool.check()
    assert not engine.has_unfinished() and engine.pool.num_free == engine.pool.num_blocks
    assert engine.stats()["num_finished"] == 4
    assert [entry["reason"] for entry in engine.step().finished] == ["abort"] * 4
    assert engine.stats()["num_finished"] == 4


def test_abort_in_the_middle_of_a_prompt() -> None:
    engine = open_engine(max_num_batched_tokens=4)
    engine.add_request([1] * 10, greedy(), "long")
    engine.step()
    assert engine.requests["long"].num_computed_tokens == 4
    assert engine.abort("long")
    assert drain(engine) == {} and not engine.step().scheduled


def test_abort_of_the_finished_and_the_unknown_is_no() -> None:
    engine = open_engine()
    engine.add_request(PROMPT, greedy(1), "x")
    engine.step()
    assert not engine.abort("x") and not engine.abort("never seen")
    engine.pool.check()


def test_abort_while_the_step_runs() -> None:
    """Its token was computed for nothing: nobody hears of it, and its blocks are back before the next step."""
    engine = open_engine()
    engine.add_request(PROMPT, greedy(3), "gone")
    engine.add_request(PROMPT, greedy(3), "stays")
    gone = engine.requests["gone"]

    def during(plan: StepPlan) -> None:
        engine.abort("gone")

    engine.runner.during = during
    trace = engine.step()
    engine.runner.during = lambda plan: None
    assert gone.output_token_ids == []
    assert [new["request_id"] for new in trace.new_tokens] == ["stays"]
    assert trace.finished == [{"request_id": "gone", "reason": "abort"}]
    assert list(engine.pool.tables) == ["stays"]
    assert drain(engine) == {"stays": "length"}


def test_abort_from_a_listener_that_has_seen_enough() -> None:
    engine = open_engine()
    for name in ("x", "y"):
        engine.add_request(PROMPT, greedy(5), name)
    x = engine.requests["x"]

    def listen(trace: StepTrace) -> None:
        if x.num_output_tokens == 2 and x.finish_reason is None:
            assert engine.abort("x")

    engine.listeners.append(listen)
    assert drain(engine) == {"x": "abort", "y": "length"}
    assert x.output_token_ids == ANSWER[:2]


def test_abort_from_a_step_listener() -> None:
    engine = open_engine()
    engine.add_request(PROMPT, greedy(5), "x")
    engine.listeners.append(lambda trace: engine.abort("x"))
    engine.step()
    assert not engine.has_unfinished() and engine.pool.num_free == engine.pool.num_blocks


def test_an_id_is_free_again_after_its_end() -> None:
    engine = open_engine()
    engine.add_request(PROMPT, greedy(2), "x")
    with pytest.raises(UsageError, match="'x' is in use"):
        engine.add_request([7], greedy(2), "x")
    engine.abort("x")
    engine.add_request(PROMPT, greedy(2), "x")
    assert drain(engine) == {"x": "length"}


def test_a_number_given_by_hand_does_not_stand_in_the_way_of_the_next() -> None:
    engine = open_engine()
    engine.add_request(PROMPT, greedy(2), "1")
    assert engine.add_request(PROMPT, greedy(2)) != "1"
    assert len(engine.requests) == 2


def test_a_runner_that_raises_leaves_the_engine_able_to_go_on() -> None:
    engine = crowded()

    def during(plan: StepPlan) -> None:
        raise RuntimeError("the device is lost")

    engine.runner.during = during
    for _ in range(3):
        with pytest.raises(RuntimeError, match="device is lost"):
            engine.step()
        engine.pool.check()
    engine.runner.during = lambda plan: None
    outputs = dict(engine.requests)
    assert drain(engine) == dict.fromkeys("abcd", "length")
    for name, request in outputs.items():
        alone, _ = answer_alone(request.prompt_token_ids, greedy(5), 100)
        assert request.output_token_ids == alone, name


def test_a_runner_that_returns_the_wrong_number_of_tokens_is_caught() -> None:
    engine = open_engine()
    engine.add_request(PROMPT, greedy(2))
    execute = engine.runner.execute
    engine.runner.execute = lambda plan: execute(plan)._replace(token_ids=[None])
    with pytest.raises(RuntimeError, match="one token where samples is set"):
        engine.step()


def test_a_prompt_of_what_is_no_token_is_refused() -> None:
    engine = open_engine()
    for prompt, message in (
        ([1, 40], "token id 40 is out of range; the vocabulary has 40 tokens"),
        ([-1], "token id -1 is out of range"),
        ([1.5], "1.5 is no token id"),
        ([True], "True is no token id"),
        ("text", "needs a tokenizer"),
    ):
        with pytest.raises(UsageError, match=message):
            engine.add_request(prompt)
    for option, message in (
        ({"tenant": "a"}, "tenant='a' is not supported yet"),
        ({"priority": 1}, "priority=1 has no effect without scheduling_policy='priority'"),
        ({"priority": 0.5}, "priority=0.5 must be a whole number"),
    ):
        with pytest.raises(UsageError, match=message):
            engine.add_request([1], **option)
    assert not engine.requests and not engine.scheduler.waiting
