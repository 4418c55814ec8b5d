"""Sampling against transformers' logits processors: the same tokens come, equally often, and nothing else counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kernels.cpu import build
from kernels.triton import launch
from workbench.errors import UsageError
from workbench.model.sampling import chosen_sampler, sample, uniform
from workbench.sampling_params import SamplingParams

VOCAB_SIZE = 50


@dataclass
class View:
    """What `sample` may see of a request."""

    params: SamplingParams
    seed: int = 0
    token_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    num_prompt_tokens: int = 3
    stop_token_ids: frozenset[int] = frozenset()
    request_id: str = "x"
    block_table: list[int] = field(default_factory=list)


def logits_like(seed: int, spread: float = 2.0, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    return spread * torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed))


def transformers_probabilities(logits: torch.Tensor, view: View) -> torch.Tensor:
    """float64 probabilities after transformers' processors, in the order its `generate` applies them."""
    params, steps = view.params, LogitsProcessorList()
    if params.min_tokens:
        ends = sorted(view.stop_token_ids)
        steps.append(MinNewTokensLengthLogitsProcessor(view.num_prompt_tokens, params.min_tokens, ends, device="cpu"))
    if params.temperature != 1.0:
        steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k > 0:
        steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        steps.append(TopPLogitsWarper(params.top_p))
    return steps(torch.tensor([view.token_ids]), logits[None].double()).softmax(-1)[0]


def draws(logits: torch.Tensor, view: View, count: int) -> torch.Tensor:
    """How often each token came, over ``count`` seeds."""
    views = [
        View(view.params, seed, view.token_ids, view.num_prompt_tokens, view.stop_token_ids) for seed in range(count)
    ]
    tokens = torch.cat([sample(logits.expand(len(part), -1), part) for part in _parts(views, 4000)])
    return torch.bincount(tokens, minlength=len(logits))


def _parts(views: list[View], size: int) -> list[list[View]]:
    return [views[i : i + size] for i in range(0, len(views), size)]


CASES = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 7},
    "top_k of one": {"top_k": 1},
    "top_k over the vocabulary": {"top_k": 10 * VOCAB_SIZE},
    "top_p": {"top_p": 0.8},
    "tiny top_p": {"top_p": 1e-9},
    "all three": {"temperature": 1.4, "top_k": 12, "top_p": 0.7},
    "min_tokens": {"min_tokens": 3, "max_tokens": 9, "top_k": 5},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("seed", [0, 1], ids=["one", "other"])
def test_the_distribution_is_that_of_transformers(options: dict[str, float], seed: int) -> None:
    logits = logits_like(seed)
    stops = frozenset(logits.topk(2).indices.tolist()) if "min_tokens" in options else frozenset()
    view = View(SamplingParams(**options), token_ids=[1, 2, 3, 4], num_prompt_tokens=3, stop_token_ids=stops)
    expected = transformers_probabilities(logits, view)
    count = 6000
    seen = draws(logits, view, count)
    assert not (seen[expected == 0] > 0).any(), "a token came that transformers forbids"
    likely = expected * count > 5
    assert (seen[expected * count > 20] > 0).all(), "a token that transformers allows never came"
    statistic = ((seen[likely] - expected[likely] * count) ** 2 / (expected[likely] * count)).sum().item()
    freedom = max(int(likely.sum()) - 1, 1)
    # Mean + 5 standard deviations of the χ² distribution. Seeds are fixed, so this fails always or never.
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5, f"χ² = {statistic:.1f} at {freedom} degrees of freedom"


def test_the_statistic_tells_a_wrong_temperature() -> None:
    """The check above must be able to fail."""
    logits = logits_like(0)
    expected = transformers_probabilities(logits, View(SamplingParams(temperature=0.85)))
    count = 6000
    seen = draws(logits, View(SamplingParams(temperature=1.0)), count)
    likely = expected * count > 5
    statistic = ((seen[likely] - expected[likely] * count) ** 2 / (expected[likely] * count)).sum().item()
    assert statistic > int(likely.sum()) + 5 * (2 * int(likely.sum())) ** 0.5


@pytest.mark.parametrize("seed", range(5))
def test_greedy_is_the_first_of_the_largest(seed: int) -> None:
    logits = torch.stack([logits_like(10 * seed + i) for i in range(4)])
    views = [View(SamplingParams(temperature=0), seed=i) for i in range(4)]
    assert sample(logits, views).tolist() == logits.argmax(-1).tolist()


def test_the_same_seed_and_position_give_the_same_token() -> None:
    logits = logits_like(0, spread=0.5)
    for options in CASES.values():
        params = SamplingParams(**options)
        tokens = {sample(logits[None], [View(params, seed=5)]).item() for _ in range(3)}
        assert len(tokens) == 1
    params = SamplingParams()
    by_seed = {sample(logits[None], [View(params, seed=s)]).item() for s in range(40)}
    by_position = {sample(logits[None], [View(params, seed=5, token_ids=[1] * n)]).item() for n in range(3, 43)}
    assert min(len(by_seed), len(by_position)) > 10


def test_what_the_tokens_are_does_not_matter_only_how_many() -> None:
    logits, params = logits_like(0, spread=0.5)[None], SamplingParams()
    one, other = (sample(logits, [View(params, 3, tokens)]).item() for tokens in ([1, 2, 3], [9, 8, 7]))
    assert one == other


def test_neighbours_and_order_change_nothing() -> None:
    views = [
        View(SamplingParams(**options), seed, token_ids=[1] * (4 + seed), stop_token_ids=frozenset({seed}))
        for seed, options in enumerate([*CASES.values(), {"temperature": 0}, {}, {"top_p": 0.9, "temperature": 0.01}])
    ]
    logits = torch.stack([logits_like(i, spread=0.7) for i in range(len(views))])
    alone = [sample(logits[i : i + 1], [view]).item() for i, view in enumerate(views)]
    for shift in range(len(views)):
        order = [*range(shift, len(views)), *range(shift)]
        assert sample(logits[order], [views[i] for i in order]).tolist() == [alone[i] for i in order]
    backwards = [*range(len(views))][::-1]
    assert sample(logits[backwards], [views[i] for i in backwards]).tolist() == alone[::-1]


def test_sampling_leaves_the_logits_as_they_are() -> None:
    logits = logits_like(0)[None]
    before = logits.clone()
    for options in CASES.values():
        sample(logits, [View(SamplingParams(**options), stop_token_ids=frozenset({1}))])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_end_tokens_are_forbidden_until_min_tokens_are_out(temperature: float) -> None:
    logits = torch.zeros(VOCAB_SIZE)
    logits[7] = 50.0
    params = SamplingParams(temperature=temperature, min_tokens=2, max_tokens=9)
    for outputs in range(4):
        # A stop token beyond the vocabulary (a tokenizer may know more tokens than the head) must do no harm.
        view = View(params, token_ids=[1, 2, 3] + [4] * outputs, stop_token_ids=frozenset({7, VOCAB_SIZE + 3}))
        assert (sample(logits[None], [view]).item() == 7) is (outputs >= 2)


def test_ties_top_k_keeps_exactly_k_of_lowest_index() -> None:
    """transformers keeps every token that ties with the k-th; here k means k, and the lower id goes first."""
    logits = torch.zeros(VOCAB_SIZE)
    logits[30:40] = 1.0
    seen = draws(logits, View(SamplingParams(top_k=3)), 2000)
    assert seen.nonzero().flatten().tolist() == [30, 31, 32]
    theirs = transformers_probabilities(logits, View(SamplingParams(top_k=3)))
    assert theirs.nonzero().flatten().tolist() == list(range(30, 40))


def test_ties_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = torch.zeros(10)
    for top_p, kept in ((0.05, 1), (0.15, 2), (0.95, 10)):
        assert draws(logits, View(SamplingParams(top_p=top_p)), 2000).nonzero().flatten().tolist() == list(range(kept))


@pytest.mark.parametrize("temperature", [1e-3, 1e-6, 1e-310, 5e-324])
def test_a_very_low_temperature_is_greedy_and_finite(temperature: float) -> None:
    logits = logits_like(0)
    for options in ({}, {"top_p": 0.5}, {"top_k": 4}):
        view = View(SamplingParams(temperature=temperature, **options), seed=3)
        assert sample(logits[None], [view]).item() == logits.argmax().item()


def test_tokens_of_no_probability_never_come() -> None:
    logits = torch.full((VOCAB_SIZE,), float("-inf"))
    logits[[0, 20, VOCAB_SIZE - 1]] = 0.0
    for options in ({}, {"top_p": 0.999}, {"top_k": 20}):
        seen = draws(logits, View(SamplingParams(**options)), 3000)
        assert seen.nonzero().flatten().tolist() == [0, 20, VOCAB_SIZE - 1]


@pytest.mark.parametrize("axis", ["seed", "position"])
def test_uniform_looks_uniform_and_independent(axis: str) -> None:
    numbers = [uniform(i, 9) if axis == "seed" else uniform(9, i) for i in range(20_000)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    assert abs(fmean(numbers) - 0.5) < 0.01 and abs(pstdev(numbers) - 12**-0.5) < 0.005
    counts = [0] * 100
    for number in numbers:
        counts[int(100 * number)] += 1
    assert sum((count - 200) ** 2 / 200 for count in counts) < 99 + 5 * (2 * 99) ** 0.5
    # Neighbours know nothing of each other.
    covariance = fmean((a - 0.5) * (b - 0.5) for a, b in pairwise(numbers))
    assert abs(covariance) * 12 < 0.03


def test_uniform_takes_large_and_equal_arguments() -> None:
    assert uniform(2**80 + 5, 3) == uniform(5 + 2**80, 3)
    assert 0 <= uniform(2**63, 2**40) < 1
    assert uniform(1, 2) != uniform(2, 1) and uniform(0, 0) != uniform(0, 1) != uniform(1, 0)


def test_who_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")

    def makers(device: torch.device, *names: str) -> list[str]:
        return [chosen_sampler(name, device).name for name in names]

    assert makers(cpu, "auto", "torch", "cpu") == ["cpu", "reference", "cpu"]
    monkeypatch.setattr(launch, "cannot_run", lambda device: "torch finds no CUDA GPU here")
    assert makers(cuda, "auto", "torch") == ["reference", "reference"]
    assert chosen_sampler("auto", cuda).why == "not triton: torch finds no CUDA GPU here"
    with pytest.raises(UsageError, match="sampling_backend='cpu' cannot serve this model: it runs on CPUs and the"):
        chosen_sampler("cpu", cuda)
    monkeypatch.setattr(launch, "cannot_run", lambda device: "" if device.type == "cuda" else "it runs on GPUs")
    assert makers(cuda, "auto", "torch", "triton") == ["triton", "reference", "triton"]
    with pytest.raises(UsageError, match="sampling_backend='triton' cannot serve this model: it runs on GPUs; use"):
        chosen_sampler("triton", cpu)
    with pytest.raises(UsageError, match=r"sampling_backend='flashinfer' .*: not installed: pip install fl"):
        chosen_sampler("flashinfer", cuda)
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", "none")
    build._library.cache_clear()
    try:
        assert makers(cpu, "auto", "torch") == ["reference", "reference"]
        with pytest.raises(UsageError, match="WORKBENCH_CPU_KERNELS=none; use 'torch' or 'auto'"):
            chosen_sampler("cpu", cpu)
    finally:
        build._library.cache_clear()


def test_requests_with_every_option_get_the_same_tokens_from_every_maker() -> None:
    options = [*CASES.values(), {"temperature": 0}, {"min_p": 0.2, "repetition_penalty": 1.5}, {"logit_bias": {4: 9.0}}]
    views = [View(SamplingParams(**one), seed, stop_token_ids=frozenset({5})) for seed in range(9) for one in options]
    logits = torch.stack([logits_like(i) for i in range(len(views))])
    assert torch.equal(sample(logits, views, "cpu"), sample(logits, views, "reference"))
