"""Who waits for whom, ranked as theory says: on a virtual clock in the default suite, live as a proof."""

from __future__ import annotations

from random import Random
from statistics import median
from typing import Any

import pytest

from tests.proof.conftest import open_smollm2
from tests.proof.same_tokens import Comparison
from tests.proof.workloads import last_logits
from workbench.config import EngineConfig
from workbench.measure.arrivals import poisson
from workbench.measure.drive import Drive, drive
from workbench.measure.metrics import serving_metrics
from workbench.measure.workload import Ask, Piece, Workload
from workbench.simulate import FixedCost, simulated_engine

SEATS, REQUESTS, LONG, EVERY = 8, 32, 192, 8
ROUNDS = 1


def load(answers: list[int], seed: int = 0) -> Workload:
    draw = Random(seed)
    asks = [Ask((Piece(f"own {i}", draw.randint(16, 64)),), answer) for i, answer in enumerate(answers)]
    return Workload(tuple(asks), seed, {})


def skewed(seed: int = 0) -> Workload:
    """Every eighth request answers with 192 tokens, the others with 8 to 24."""
    draw = Random(seed)
    return load([LONG if i % EVERY == 0 else draw.randint(8, 24) for i in range(REQUESTS)], seed)


def even(seed: int = 0) -> Workload:
    """As many tokens, all answers within a quarter of the mean."""
    draw, mean = Random(seed), sum(skewed(seed).output_lens) / REQUESTS
    return load([draw.randint(round(0.75 * mean), round(1.25 * mean)) for _ in range(REQUESTS)], seed)


def rates(workload: Workload, cost: FixedCost, seats: int = SEATS, **options: Any) -> dict[str, float]:
    """Output tokens a second under each policy, on a virtual clock."""
    found = {}
    for batching in ("static", "dynamic", "continuous"):
        wait = {"max_wait_ms": 200.0} if batching == "dynamic" else {}
        config = EngineConfig(batching=batching, max_num_seqs=seats, **wait, **options)
        told = drive(simulated_engine(config, cost), workload, 1000)
        assert {i: len(answer) for i, answer in told.answers.items()} == dict(enumerate(workload.output_lens))
        found[batching] = serving_metrics(told.traces)["output_throughput"]
    return found


# Seconds of a step and of each token in it: all for reading weights, as in a small decode, or much for each token too.
COSTS = [FixedCost(0.02), FixedCost(0.01, 0.0005)]
with_costs = pytest.mark.parametrize("cost", COSTS, ids=["weights", "weights-and-tokens"])


@with_costs
def test_continuous_gives_most_and_static_least(cost: FixedCost) -> None:
    """Four requests come, and after four seconds the rush. Static sits and waits for it, dynamic serves the four."""
    found = rates(skewed().arriving([0.0] * 4 + [4.0] * (REQUESTS - 4), {}), cost)
    assert found["continuous"] > found["dynamic"] > found["static"], found
    # With one seat there is nobody to wait for.
    alone = rates(skewed(), cost, seats=1)
    assert alone["continuous"] == pytest.approx(alone["dynamic"]) == pytest.approx(alone["static"])


@with_costs
@pytest.mark.parametrize("rate", [4.0, 8.0, float("inf")])
def test_continuous_gives_most_under_any_rush(cost: FixedCost, rate: float) -> None:
    """Static and dynamic are not ranked here: under a steady rush a batch that leaves half empty may cost more than
    the wait for company would have."""
    found = rates(skewed().arriving(poisson(REQUESTS, rate, seed=1), {}), cost)
    assert found["continuous"] > max(found["dynamic"], found["static"]), found
    if rate == float("inf"):
        assert found["dynamic"] == pytest.approx(found["static"])


def test_the_gain_is_the_spread_of_the_answers() -> None:
    gain = {}
    for name, workload in {"skewed": skewed(), "even": even()}.items():
        found = rates(workload, FixedCost(0.02))
        gain[name] = found["continuous"] / found["static"]
    assert gain["skewed"] > 2 > 1.3 > gain["even"] >= 1, gain
    alike = rates(load([20] * REQUESTS), FixedCost(0.02))
    assert alike["continuous"] == pytest.approx(alike["static"])


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_live_continuous_gives_half_as_much_again_on_a_skewed_load(proof: Any) -> None:
    """Both policies in turn on one model; uniform lengths beside it, because there the gain all but vanishes."""
    llm = open_smollm2(num_kv_blocks=512, max_num_seqs=SEATS)
    vocab_size = llm.model_config.vocab_size

    def serve(workload: Workload, batching: str) -> Drive:
        return drive(llm.new_engine(batching=batching), workload, vocab_size)

    serve(load([4] * SEATS), "continuous")  # warms up
    ratios, tally = {}, Comparison()
    for name, workload in {"skewed": skewed(), "even": even()}.items():
        pace: dict[str, list[float]] = {"static": [], "continuous": []}
        last: dict[str, Drive] = {}
        for _ in range(ROUNDS):
            for batching in pace:
                last[batching] = serve(workload, batching)
                pace[batching].append(serving_metrics(last[batching].traces)["output_throughput"])
        for i in range(REQUESTS):
            prompt, answers = workload.prompt(i, vocab_size), [told.answers[i] for told in last.values()]
            tally.compare(f"{name}, request {i}", prompt, answers[0], answers[1], last_logits(llm))
        ratios[name] = median(pace["continuous"]) / median(pace["static"])
        steps = {batching: len(told.traces) for batching, told in last.items()}
        proof.report(
            f"continuous against static, {name}",
            f"{ratios[name]:.2f}× ({median(pace['continuous']):.0f} against {median(pace['static']):.0f} tok/s; "
            f"{steps['continuous']} against {steps['static']} steps)",
        )
    proof.report("the same tokens under both", tally.figures())
    assert ratios["skewed"] >= 1.5, ratios
    assert ratios["skewed"] > ratios["even"], ratios
