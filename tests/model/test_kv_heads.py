"""Checkpoints with another number of KV heads: means by brute force, copies that answer the same, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm
from workbench.errors import UsageError
from workbench.model.config import ModelConfig
from workbench.model.weights.kv_heads import copied, pooled, with_kv_heads

TEXT = list(range(40, 70))


@pytest.fixture(scope="module")
def mha(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four query heads, four KV heads, with biases."""
    path = tmp_path_factory.mktemp("mha")
    make_tiny("llama-linear", path, num_key_value_heads=4)
    return path


def stored(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


@pytest.mark.parametrize(("heads", "groups", "head_dim"), [(4, 2, 3), (6, 2, 4), (9, 3, 1), (5, 5, 2), (8, 1, 2)])
def test_each_group_is_the_mean_of_its_neighbours(heads: int, groups: int, head_dim: int) -> None:
    rows = torch.randn(heads * head_dim, 7, generator=torch.Generator().manual_seed(heads))
    found, size = pooled(rows, heads, groups), heads // groups
    assert found.shape == (groups * head_dim, 7)
    for group in range(groups):
        for row in range(head_dim):
            members = [rows[head * head_dim + row] for head in range(group * size, (group + 1) * size)]
            torch.testing.assert_close(found[group * head_dim + row], sum(members) / size)
    again = copied(found, groups, heads)
    for head in range(heads):
        part = again[head * head_dim : (head + 1) * head_dim]
        assert torch.equal(part, found[head // size * head_dim : (head // size + 1) * head_dim])
    torch.testing.assert_close(pooled(again, heads, groups), found)


def test_only_keys_and_values_change_and_the_config_says_so(mha: Path, tmp_path: Path) -> None:
    assert with_kv_heads(mha, tmp_path / "gqa", 2) == tmp_path / "gqa"
    before, after = stored(mha), stored(tmp_path / "gqa")
    assert list(before) == list(after)
    changed = {name for name in before if before[name].shape != after[name].shape}
    assert changed == {
        f"model.layers.{layer}.self_attn.{part}_proj.{kind}"
        for layer in range(3)
        for part in "kv"
        for kind in ("weight", "bias")
    }
    assert all(torch.equal(before[name], after[name]) for name in before if name not in changed)
    was, now = ModelConfig.from_path(mha), ModelConfig.from_path(tmp_path / "gqa")
    assert (was.attention_kind, now.attention_kind) == ("MHA", "GQA")
    assert was.kv_bytes_per_token() == 2 * now.kv_bytes_per_token()


def test_a_copy_of_heads_is_the_same_model_and_a_mean_of_unlike_heads_is_not(mha: Path, tmp_path: Path) -> None:
    one = open_llm(with_kv_heads(mha, tmp_path / "mqa", 1)).runner.logits(TEXT)
    four = open_llm(with_kv_heads(tmp_path / "mqa", tmp_path / "copied", 4)).runner.logits(TEXT)
    torch.testing.assert_close(four, one, rtol=1e-4, atol=1e-4)
    assert (open_llm(mha).runner.logits(TEXT) - one).abs().max() > 0.1


@pytest.mark.parametrize(
    ("number", "words"),
    [(3, "it must divide the 4 query heads"), (8, "cannot be had from 4"), (0, "cannot be had"), (-2, "cannot be had")],
)
def test_numbers_that_cannot_be_are_refused(mha: Path, tmp_path: Path, number: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        with_kv_heads(mha, tmp_path / "new", number)
    assert not (tmp_path / "new").exists()


def test_a_model_is_not_written_over_itself(mha: Path, tmp_path: Path) -> None:
    before = stored(mha)
    with pytest.raises(UsageError, match="give another folder"):
        with_kv_heads(mha, mha / ".." / mha.name, 2)
    assert all(torch.equal(before[name], tensor) for name, tensor in stored(mha).items())


def test_latents_have_no_heads_to_average(tmp_path: Path) -> None:
    make_tiny("deepseek-v2-lite", tmp_path)
    with pytest.raises(UsageError, match="latent attention"):
        with_kv_heads(tmp_path, tmp_path / "new", 2)
    assert json.loads((tmp_path / "config.json").read_text())["num_key_value_heads"] == 4
