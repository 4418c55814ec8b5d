"""The sampler that filters by FlashInfer's kernels, against a stand-in that checks their arguments."""

from __future__ import annotations

import pytest
import torch

import kernels
from tests.attention import stand_ins
from workbench.model import flashinfer_sampling as flashinfer
from workbench.model.sampling import chosen_sampler

ROWS, SIZE = 6, 40


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.install(monkeypatch, "flashinfer")


def logits(seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(seed))


def test_without_filters_the_tokens_are_those_of_every_other_backend() -> None:
    for seed in range(40):
        u = torch.rand(ROWS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
        options = ([0.0, 1.0, 0.5, 2.0, 0.0, 1e-3], [0] * ROWS, [1.0] * ROWS, [0.0] * ROWS, u)
        expected = kernels.sample(logits(seed), *options, maker="reference")
        assert torch.equal(flashinfer.sample(logits(seed), *options), expected)


def test_filters_leave_the_same_tokens_in_the_same_shares() -> None:
    """Over an even grid of random numbers each token is drawn as often as by the definition, in another order."""
    steps = 1000
    rows = logits().repeat_interleave(steps, 0)
    u = ((torch.arange(steps, dtype=torch.float64) + 0.5) / steps).repeat(ROWS)
    options = (
        *([1.0, 0.7, 1.3, 1.0, 0.0, 1.0], [5, 0, 3, 0, 4, 100], [1.0, 0.8, 0.9, 1.0, 0.5, 0.6]),
        [0.0, 0.0, 0.0, 0.2, 0.0, 0.1],
    )
    spread = [[number for number in numbers for _ in range(steps)] for numbers in options]
    tokens = flashinfer.sample(rows, *spread, u.tolist()), kernels.sample(rows, *spread, u, maker="reference")
    found, expected = (torch.stack([one.bincount(minlength=SIZE) for one in ids.split(steps)]) for ids in tokens)
    assert (found - expected).abs().max() <= 2 and torch.equal(found > 0, expected > 0)
    assert (expected[0] > 0).sum() == 5


def test_a_neighbours_filter_changes_no_token() -> None:
    rows = logits(3)
    alone = ([1.0] * ROWS, [0] * ROWS, [1.0] * ROWS, [0.0] * ROWS, [0.37] * ROWS)
    beside = ([1.0] * ROWS, [0] * 5 + [2], [1.0] * 4 + [0.5, 1.0], [0.0] * ROWS, [0.37] * ROWS)
    assert torch.equal(flashinfer.sample(rows, *alone)[:4], flashinfer.sample(rows, *beside)[:4])


def test_where_it_cannot_run() -> None:
    assert flashinfer.cannot_run(torch.device("cpu")) == "it runs on GPUs and the model is on cpu"
    assert flashinfer.cannot_run(torch.device("cuda")) == ""
    told = chosen_sampler("flashinfer", torch.device("cuda"))
    assert told == ("flashinfer", "sampling_backend='flashinfer'; it has never yet run on hardware")
