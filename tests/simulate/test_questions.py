"""A whole load simulated: the same bytes in another process, counts conserved; what if; the highest rate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.config import EngineConfig
from workbench.errors import UsageError
from workbench.measure.drive import drive
from workbench.measure.lengths import Uniform
from workbench.measure.load import Load
from workbench.measure.metrics import serving_metrics
from workbench.measure.shared_heads import chat
from workbench.measure.slo import Slo
from workbench.measure.workload import Ask, Piece, Workload, plain_workload
from workbench.simulate import (
    CHIPS,
    ChipCost,
    FixedCost,
    PlanDigest,
    highest_rate,
    model_shape,
    simulate,
    simulated_engine,
    what_if,
)
from workbench.simulate.run import numbered

ROOT = Path(__file__).parents[2]


def asks(*triples: tuple[float, int, int]) -> Workload:
    """(arrival, prompt tokens, output tokens)"""
    return Workload(tuple(Ask((Piece(f"own {i}", n),), out, at) for i, (at, n, out) in enumerate(triples)), 0, {})


def test_counts_come_out_and_numbered_pieces_change_nothing() -> None:
    workload = plain_workload(30, Uniform(1, 90), Uniform(1, 40), seed=1)
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=50, num_kv_blocks=20, max_model_len=200)
    result = simulate(Load(config, workload), FixedCost(0.1, 0.003))
    assert (result["completed"], result["rejected"], result["simulated"]) == (30, 0, True)
    assert result["total_input_tokens"] == sum(workload.input_lens)
    assert result["total_output_tokens"] == sum(workload.output_lens)
    assert not {"phases", "bookkeeping_share", "provenance"} & set(result)
    # The tokens of a drawn workload are others; plans and times are the same.
    told = drive(simulated_engine(config, FixedCost(0.1, 0.003)), workload, 50)
    digest = PlanDigest()
    for trace in told.traces:
        digest.add(trace)
    measured = serving_metrics(told.traces, max_num_seqs=6)
    assert (
        digest.hexdigest() == result["digest"]
        and measured.items()
        >= {name: result[name] for name in ("duration", "p99_ttft_ms", "preemptions", "mean_kv_usage")}.items()
    )
    assert result["preemptions"] > 0


def test_equal_pieces_are_equal_tokens_and_others_are_not() -> None:
    same, other = Piece("hash 7", 3), Piece("hash 8", 3)
    workload = numbered(Workload((Ask((same, other), 1), Ask((same, Piece("own", 2)), 1)), 0, {}))
    one, two = workload.prompt(0, 1), workload.prompt(1, 1)
    assert one[:3] == two[:3] and len({*one[:3]}) == 1 and one[3] not in {*one[:3], *two}
    assert list(one.packed) == one
    talk = simulate(Load(EngineConfig(), chat(2, 3, 5, Uniform(3, 3), Uniform(2, 2), seed=0)), FixedCost(0.1))
    assert talk["total_input_tokens"] == sum(2 * (5 + 3 + turn * 5) for turn in range(3))


def test_another_process_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.cli import main

    trace = ROOT / "tests/data/traces/mooncake_format.jsonl"
    command = ["simulate", "--trace", str(trace), "--model", "qwen2.5-7b", "--chip", "h100", "--block-size", "512",
               "--json"]  # fmt: skip
    told = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-m", "workbench", *command], env=env, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert main(command) == 0
    assert told[0] == told[1] == capsys.readouterr().out.encode()
    result = json.loads(told[0])
    assert result["completed"] == result["workload"]["num_prompts"] and len(result["digest"]) == 64


def test_the_digest_tells_plans_apart_and_not_times() -> None:
    load = Load(EngineConfig(max_num_batched_tokens=64), asks((0, 100, 5), (0, 30, 5)))
    one = simulate(load, FixedCost(0.1))
    assert simulate(load, FixedCost(0.2))["digest"] == one["digest"]
    other = load._replace(config=load.config.replace(max_num_batched_tokens=65))
    assert simulate(other, FixedCost(0.1))["digest"] != one["digest"]


def test_what_if_finds_the_first_step_that_parts_and_why() -> None:
    # One prompt of 100 first; at 0.25 one of 50. Both budgets hold the first alone; the smaller one has no room for the
    # second beside the decode of the first.
    load = Load(EngineConfig(max_num_batched_tokens=100), asks((0, 100, 20), (0.25, 50, 3), (0.25, 60, 3)))
    other = load._replace(config=load.config.replace(max_num_batched_tokens=120))
    parting = what_if(load, other, FixedCost(0.1))
    assert parting is not None and parting.step == 3
    assert parting.differences() == {"2": ("prefill: 49 tokens from 0", "prefill: 60 tokens from 0")}
    assert parting.to_dict()["requests"].keys() == {"2"}
    assert what_if(load, load, FixedCost(0.1)) is None


def test_what_if_tells_who_was_left_out_and_why() -> None:
    load = Load(EngineConfig(max_num_seqs=2), asks((0, 10, 3), (0, 10, 3), (0, 10, 3)))
    parting = what_if(load, load._replace(config=load.config.replace(max_num_seqs=3)), FixedCost(0.1))
    assert parting is not None and parting.step == 0
    assert parting.differences() == {"2": ("left out: max_num_seqs", "prefill: 10 tokens from 0")}


def test_another_chip_parts_where_arrivals_meet_other_steps() -> None:
    shape = model_shape("qwen2.5-7b")
    load = Load(EngineConfig(max_model_len=4000), asks((0, 3000, 50), (0.2, 500, 5)))
    slow, fast = ChipCost(shape, CHIPS["a100-80"]), ChipCost(shape, CHIPS["h100"])
    parting = what_if(load, load, slow, shape, fast)
    assert parting is not None and "1" in parting.differences()


def test_the_highest_rate_of_a_server_of_one_seat() -> None:
    # One seat and 0.1 s a step: a request of 5 tokens takes 0.5 s, so no more than 2 requests a second go through.
    load = Load(EngineConfig(max_num_seqs=1), asks(*[(0, 1, 5)] * 120), slo=Slo(ttft=2000))
    found = highest_rate(load, FixedCost(0.1))
    assert 1.0 < found.rate < 2.1  # a little above, because the last of 120 requests end the queue
    assert found.result["slo_attainment"] >= 0.9 and found.result["workload"]["request_rate"] == found.rate
    failed = min(tried.rate for tried in found.tried if not tried.holds)
    assert found.rate < failed <= found.rate * 1.02
    assert found.to_dict() == highest_rate(load, FixedCost(0.1)).to_dict()
    strict = highest_rate(load, FixedCost(0.1), attainment=1.0)
    assert strict.rate < found.rate


@pytest.mark.parametrize(
    ("slo", "options", "told"),
    [
        (None, {}, "asked for an SLO"),
        (Slo(ttft=50), {}, "does not hold at any rate"),
        (Slo(ttft=1e9), {}, "holds at any rate"),
        (Slo(ttft=500), {"attainment": 1.5}, "attainment of 1.5"),
        (Slo(ttft=500), {"tolerance": 0.0}, "tolerance of 0.0"),
    ],
)
def test_a_search_that_cannot_end_is_refused(slo, options, told) -> None:
    with pytest.raises(UsageError, match=told):
        highest_rate(Load(EngineConfig(max_num_seqs=1), asks((0, 1, 5), (0, 1, 5)), slo=slo), FixedCost(0.1), **options)
    with pytest.raises(UsageError, match="closed loop"):
        highest_rate(Load(EngineConfig(), asks((0, 1, 5)).with_users(1), slo=Slo(ttft=1)), FixedCost(0.1))
