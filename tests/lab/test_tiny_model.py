"""The tiny model: what is trained is what the engine runs, and it learns, the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.lab.lessons import begin
from workbench.errors import UsageError
from workbench.lab import judge, train
from workbench.lab.tiny_model import WINDOW, engine_source, forward, unseen
from workbench.model.config import ModelConfig
from workbench.model.weights.files import load_safetensors
from workbench.model.weights.kv_heads import with_kv_heads


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder / "mha", train(folder / "mha", 6)


def test_it_learns_the_same_every_time(trained: tuple[Path, list[float]], tmp_path: Path) -> None:
    path, losses = trained
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.3
    assert train(tmp_path, 6) == losses
    again = dict(load_safetensors(tmp_path))
    assert all(torch.equal(again[name], tensor) for name, tensor in load_safetensors(path))


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_what_was_trained_is_what_the_engine_runs(
    trained: tuple[Path, list[float]], kv_heads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trained[0] if kv_heads == 8 else with_kv_heads(trained[0], tmp_path / "gqa", kv_heads)
    judged = judge(begin(monkeypatch, tmp_path, "05", "tiny"), path)
    assert judged.llm.model_config.num_kv_heads == kv_heads
    weights = {name: tensor.float() for name, tensor in load_safetensors(path)}
    own = forward(weights, ModelConfig.from_path(path), torch.tensor(unseen()))
    torch.testing.assert_close(judged.logits, own.flatten(0, 1), rtol=1e-3, atol=1e-3)
    targets = torch.tensor(unseen())[:, 1:].flatten()
    loss = torch.nn.functional.cross_entropy(own[:, :-1].flatten(0, 1), targets)
    assert judged.perplexity == pytest.approx(loss.exp().item(), rel=1e-3)


def test_training_goes_on_from_a_model(trained: tuple[Path, list[float]], tmp_path: Path) -> None:
    pooled = with_kv_heads(trained[0], tmp_path / "gqa", 2)
    losses = train(tmp_path / "on", 1, pooled, seed=1)
    assert losses[0] < trained[1][0] - 0.3, "it starts from what was learned"
    assert ModelConfig.from_path(tmp_path / "on").num_kv_heads == 2


def test_it_is_judged_by_text_it_has_not_seen() -> None:
    seen, kept_apart = engine_source()
    assert len(seen) > 50_000 and all(len(piece) == WINDOW for piece in unseen())
    assert all(bytes(piece) in kept_apart and bytes(piece) not in seen for piece in unseen())


@pytest.mark.parametrize("steps", [0, -1, 2.0, True])
def test_a_number_of_steps_that_is_none_is_refused(steps: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give a whole number of at least 1"):
        train(tmp_path, steps)  # type: ignore[arg-type]
