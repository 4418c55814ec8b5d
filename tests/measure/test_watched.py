"""Hidden states watched layer by layer, against transformers; the noise between two models."""

from __future__ import annotations

import math

import pytest
import torch

from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm
from workbench.measure.evaluate import Record, Windows, score, summary
from workbench.measure.watched import Watched, noise_of, snr_db

IDS = [(11 * i + i * i) % 211 for i in range(40)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    return path, make_tiny("smollm2", path, seed=1)


def test_hidden_states_are_those_of_transformers(tiny):
    path, model = tiny
    llm = open_llm(path)
    watched = Watched(llm.runner)
    assert torch.equal(watched(IDS), llm.runner.logits(IDS)), "watching changes nothing"
    with torch.inference_mode():
        theirs = model(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    assert len(watched.hidden) == llm.model_config.num_layers == 3
    for ours, exact in zip(watched.hidden[:-1], theirs[1:-1], strict=True):  # theirs normalizes the last
        torch.testing.assert_close(ours, exact[0], rtol=1e-4, atol=1e-4)
    normed = model.model.norm(watched.hidden[-1])
    torch.testing.assert_close(normed, theirs[-1][0], rtol=1e-4, atol=1e-4)


def test_noise_of_every_layer_stands_in_the_row_and_in_the_record(tiny, tmp_path):
    path, _ = tiny
    exact, coarse = (open_llm(path, quantization=name) for name in ("none", "w8a8-int8"))
    windows, ids = Windows(16, 8), IDS
    parts = list(score(ids, windows, Watched(coarse.runner), Watched(exact.runner)))
    row = summary(parts, windows, "")
    # Once more: every scored token in its window, its layers apart.
    shares = torch.zeros(3, dtype=torch.float64)
    for begin, first, end in windows.spans(len(ids)):
        both = [Watched(one.runner) for one in (coarse, exact)]
        for one in both:
            one(ids[begin:end])
        for layer in range(3):
            for place in range(first - begin - 1, end - begin - 1):
                a, b = (one.hidden[layer][place].double() for one in both)
                shares[layer] += float((a - b).square().sum() / b.square().sum())
    assert [one["name"] for one in row["layers"]] == [f"model.layers.{i}" for i in range(3)]
    for one, share in zip(row["layers"], shares.tolist(), strict=True):
        assert one["snr_db"] == pytest.approx(10 * math.log10(row["tokens"] / share), abs=1e-3)
    assert 15 < row["layers"][0]["snr_db"] < 60
    record = Record(tmp_path / "kept", {})
    for part in parts:
        record.add(part)
    assert Record(tmp_path / "kept", {}).kept == parts


def test_without_noise_there_is_no_figure(tiny):
    path, _ = tiny
    watched = [Watched(open_llm(path).runner) for _ in range(2)]
    row = summary(list(score(IDS, Windows(16, 8), *watched)), Windows(16, 8), "")
    assert [one["snr_db"] for one in row["layers"]] == [None] * 3
    assert snr_db(0.5, 50) == pytest.approx(20)
    other = [torch.ones(4, 8)]
    assert noise_of(other, [torch.ones(4, 8), torch.ones(4, 8)], slice(0, 4)) is None
    assert noise_of(other, [torch.ones(4, 9)], slice(0, 4)) is None
