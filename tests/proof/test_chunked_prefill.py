"""Long prompts among running answers: cut into chunks they stop nobody, and take longer themselves.

On a virtual clock in the default suite, live as a proof.
"""

from __future__ import annotations

from random import Random
from statistics import median
from typing import Any

import pytest

from tests.proof.conftest import open_smollm2
from tests.proof.same_tokens import Comparison
from tests.proof.workloads import last_logits
from workbench.config import EngineConfig
from workbench.measure.drive import Drive, drive
from workbench.measure.metrics import serving_metrics
from workbench.measure.served import Served, served_requests
from workbench.measure.workload import Ask, Piece, Workload
from workbench.simulate import CHIPS, ChipCost, CostModel, FixedCost, model_shape, simulated_engine

READERS, LONG = 4, 5
READER_TOKENS, LONG_TOKENS = 240, 24
LEAST_GAIN = 3.0
"""How many times shorter the 99th percentile of the gaps between tokens must be."""


def load(length: int) -> Workload:
    """Four short prompts with long answers; beside them prompts of ``length``, each coming when the one before it has
    its answer. So the same happens on a fast and on a slow machine."""
    draw = Random(length)
    asks = [Ask((Piece(f"reader {i}", draw.randint(16, 64)),), READER_TOKENS) for i in range(READERS)]
    for i in range(LONG):
        asks.append(Ask((Piece(f"long {i}", length),), LONG_TOKENS, after=READERS + i - 1 if i else None))
    return Workload(tuple(asks), 0, {})


def told(run: Drive) -> dict[str, float]:
    """Milliseconds: the 99th percentile of all gaps, and the long prompts' median TTFT."""
    requests = served_requests(run.traces)
    assert all(one.completed for one in requests)
    return {"p99_itl": serving_metrics(run.traces)["p99_itl_ms"], "ttft": 1e3 * median(map(_ttft, requests[READERS:]))}


def _ttft(one: Served) -> float:
    assert one.ttft is not None
    return one.ttft


H100 = ChipCost(model_shape("qwen2.5-7b"), CHIPS["h100"])
SIMULATED = {
    # Cost, length of the long prompts, budget of a step that computes a chunk.
    "plain": (FixedCost(0.01, 0.0005), 400, 64),
    "qwen2.5-7b on h100": (H100, 8192, 512),
}


@pytest.mark.parametrize(("cost", "length", "budget"), SIMULATED.values(), ids=SIMULATED)
def test_chunks_shorten_the_gaps_and_lengthen_the_long_prompts_ttft(cost: CostModel, length: int, budget: int) -> None:
    workload = load(length)

    def serve(**options: Any) -> dict[str, float]:
        config = EngineConfig(max_model_len=length + READER_TOKENS, num_kv_blocks=8192, **options)
        return told(drive(simulated_engine(config, cost), workload, 1000))

    first = serve(batching="prefill-first", max_num_batched_tokens=2 * length)
    chunked = serve(max_num_batched_tokens=budget)
    assert first["p99_itl"] / chunked["p99_itl"] >= LEAST_GAIN, (first, chunked)
    assert chunked["ttft"] > first["ttft"], (first, chunked)
    # Chunks alone do not help those who run: prompts first in pieces stop them just as long, and somewhat longer.
    pieces = serve(batching="prefill-first", max_num_batched_tokens=budget)
    assert pieces["p99_itl"] >= first["p99_itl"], (first, pieces)


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_live_chunks_shorten_the_gaps_and_lengthen_the_long_prompts_ttft(proof: Any) -> None:
    """Both in turn on one model."""
    length, budget = 640, 32
    llm = open_smollm2(num_kv_blocks=512, max_num_seqs=8)
    vocab_size = llm.model_config.vocab_size
    workload = load(length)
    ways: dict[str, dict[str, Any]] = {
        "prefill-first": {"batching": "prefill-first", "max_num_batched_tokens": 2 * length},
        "chunked": {"max_num_batched_tokens": budget},
    }
    drive(llm.new_engine(), Workload(workload.asks[:1], 0, {}), vocab_size)  # warms up
    last = {name: drive(llm.new_engine(**options), workload, vocab_size) for name, options in ways.items()}
    found = {name: told(run) for name, run in last.items()}
    tally = Comparison()
    for i in range(len(workload.asks)):
        answers = [run.answers[i] for run in last.values()]
        tally.compare(f"request {i}", workload.prompt(i, vocab_size), answers[0], answers[1], last_logits(llm))
    first, chunked = found["prefill-first"], found["chunked"]
    gain, price = first["p99_itl"] / chunked["p99_itl"], chunked["ttft"] / first["ttft"]
    proof.report(
        f"prefill-first against chunks ({budget} tokens a step, prompts of {length}), p99 ITL",
        f"{gain:.1f}× ({first['p99_itl']:.0f} against {chunked['p99_itl']:.0f} ms)",
    )
    proof.report(
        "the same, TTFT of the long prompts",
        f"{price:.2f}× as long ({chunked['ttft']:.0f} against {first['ttft']:.0f} ms)",
    )
    proof.report("the same tokens under both", tally.figures())
    assert gain >= LEAST_GAIN, found
    assert chunked["ttft"] > first["ttft"], found
