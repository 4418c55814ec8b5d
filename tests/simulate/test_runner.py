"""The real engine over a cost model: times by hand, tokens conserved, the same run twice, policies on virtual time."""

from __future__ import annotations

import pytest

from workbench.config import EngineConfig
from workbench.engine.clock import VirtualClock
from workbench.errors import UsageError
from workbench.measure.drive import drive
from workbench.measure.lengths import Uniform
from workbench.measure.metrics import serving_metrics
from workbench.measure.served import served_requests
from workbench.measure.workload import Ask, Piece, Workload, plain_workload
from workbench.sampling_params import SamplingParams
from workbench.simulate import CostModelRunner, FixedCost, simulated_engine

VOCAB = 100


def asks(*triples: tuple[float, int, int]) -> Workload:
    """(arrival, prompt tokens, output tokens)"""
    return Workload(tuple(Ask((Piece(f"own {i}", n),), out, at) for i, (at, n, out) in enumerate(triples)), 0, {})


def test_steps_last_as_long_as_the_cost_says() -> None:
    # Step 1 computes 5 + 3 tokens: 0.1 + 8 · 0.01. Then two decodes, 0.1 + 2 · 0.01, and one, 0.1 + 0.01.
    told = drive(simulated_engine(EngineConfig(), FixedCost(0.1, 0.01)), asks((0, 5, 3), (0, 3, 2)), VOCAB)
    assert [trace.duration for trace in told.traces] == pytest.approx([0.18, 0.12, 0.11])
    assert [one.e2el for one in served_requests(told.traces)] == pytest.approx([0.41, 0.30])
    assert told.traces[0].phases["forward"] == pytest.approx(0.18)


def test_a_plain_function_is_a_cost_model() -> None:
    told = drive(simulated_engine(EngineConfig(), lambda plan: 2.0 * plan.num_tokens), asks((0, 5, 2)), VOCAB)
    assert [trace.duration for trace in told.traces] == [10.0, 2.0]


@pytest.mark.parametrize("batching", ["continuous", "static", "dynamic", "prefill-first"])
def test_every_token_is_computed_once_and_every_answer_whole(batching: str) -> None:
    workload = plain_workload(40, Uniform(1, 60), Uniform(1, 30), seed=3).arriving(
        [i * 0.05 for i in range(40)], {"arrivals": "even"}
    )
    engine = simulated_engine(
        EngineConfig(batching=batching, max_num_seqs=8, max_num_batched_tokens=64), FixedCost(0.1)
    )
    told = drive(engine, workload, VOCAB)
    assert [len(told.answers[i]) for i in range(40)] == list(workload.output_lens)
    computed = sum(item["num_tokens"] for trace in told.traces for item in trace.scheduled)
    assert computed == sum(workload.input_lens) + sum(workload.output_lens) - 40, "the last token is never computed"
    engine.pool.check()
    assert engine.pool.num_available == engine.pool.num_blocks


def test_two_runs_are_the_same() -> None:
    workload = plain_workload(30, Uniform(1, 90), Uniform(1, 40), seed=1)
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=50, num_kv_blocks=20, max_model_len=200)
    one, two = (drive(simulated_engine(config, FixedCost(0.1, 0.003)), workload, VOCAB) for _ in range(2))
    assert one.traces == two.traces and any(trace.preempted for trace in one.traces)


def test_policies_rank_as_they_should_under_virtual_time() -> None:
    outputs = [192 if i % 8 == 0 else 16 for i in range(32)]
    workload = asks(*((0.0, 32, out) for out in outputs))
    rates = {}
    for batching in ("static", "continuous"):
        engine = simulated_engine(EngineConfig(batching=batching, max_num_seqs=8), FixedCost(0.1))
        rates[batching] = serving_metrics(drive(engine, workload, VOCAB).traces)["output_throughput"]
    assert rates["continuous"] > 1.5 * rates["static"]


def test_without_a_model_nobody_waits_for_blocks_and_limits_can_be_given() -> None:
    engine = simulated_engine(EngineConfig(max_num_seqs=10), FixedCost(0.1))
    assert (engine.config.max_model_len, engine.config.num_kv_blocks) == (8192, 10 * 512)
    engine = simulated_engine(EngineConfig(max_model_len=100, num_kv_blocks=7), FixedCost(0.1))
    assert (engine.config.max_model_len, engine.config.num_kv_blocks) == (100, 7)
    long = simulated_engine(EngineConfig(max_model_len=200_000, max_num_seqs=2), FixedCost(0.1))
    told = drive(long, asks((0, 100_000, 2), (0, 100_000, 2)), VOCAB)
    assert sum(len(answer) for answer in told.answers.values()) == 4


def test_a_stop_token_is_not_what_a_simulated_model_says() -> None:
    engine = simulated_engine(EngineConfig(), FixedCost(0.1))
    engine.add_request([1], SamplingParams(max_tokens=3, stop_token_ids=(0, 1)))
    tokens = []
    while engine.has_unfinished():
        tokens += [new["token_id"] for new in engine.step().new_tokens]
    assert tokens == [2, 2, 2]


def test_swapped_requests_come_back() -> None:
    config = EngineConfig(num_kv_blocks=6, block_size=4, max_model_len=24, preemption_mode="swap")
    told = drive(simulated_engine(config, FixedCost(0.1)), asks((0, 8, 12), (0, 8, 12)), VOCAB)
    assert sum(trace.blocks["swapped_out"] for trace in told.traces) > 0
    assert all(item["kind"] != "recompute" for trace in told.traces for item in trace.scheduled)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: FixedCost(-1.0), "seconds_per_step=-1.0"),
        (lambda: FixedCost(0.0), "no time at all"),
        (lambda: FixedCost(0.1, float("nan")), "seconds_per_token=nan"),
        (lambda: CostModelRunner(3.0, VirtualClock()), "3.0 is no cost model"),
        (
            lambda: simulated_engine(EngineConfig(kv_cache_memory_bytes=1 << 20), FixedCost(0.1)),
            "kv_cache_memory_bytes",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, told) -> None:
    with pytest.raises(UsageError, match=told):
        make()
