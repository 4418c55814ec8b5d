"""Notebook 05's exercises against the engine: the answers are the engine's own, and a function swapped in is used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from kernels.reference import absorb
from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm, tokens
from workbench.attention import torch_native
from workbench.lab.exercises import exercise
from workbench.model.weights import kv_heads

POOL, ABSORB = exercise("05", "mean-pool"), exercise("05", "absorb")


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
def test_averaging_is_the_engines_own(groups: int, size: int, head_dim: int, width: int) -> None:
    rows = random(groups * size * head_dim, width)
    own = kv_heads.pooled(rows, groups * size, groups)
    for answer in (POOL.function, POOL.reference):
        torch.testing.assert_close(rows.new_tensor(answer(rows.tolist(), groups * size, groups)), own)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 3))
def test_the_absorbed_query_is_the_engines_own(nope: int, rank: int, rope: int) -> None:
    query, up = random(nope + rope), random(nope, rank)
    own = absorb(query[None, None], up[None])[0, 0]
    for answer in (ABSORB.function, ABSORB.reference):
        found = answer(query[:nope].tolist(), up.tolist())
        torch.testing.assert_close(query.new_tensor(found), own[:rank])
    torch.testing.assert_close(own[rank:], query[nope:])


def test_a_checkpoint_is_averaged_by_the_readers_function(tmp_path: Path) -> None:
    """Matrices and the biases beside them, keys and values of every layer."""
    make_tiny("llama-linear", tmp_path / "mha", num_key_value_heads=4)
    kv_heads.with_kv_heads(tmp_path / "mha", tmp_path / "own", 2)
    own = kv_heads.pooled
    with POOL.use(POOL.function) as used:
        kv_heads.with_kv_heads(tmp_path / "mha", tmp_path / "readers", 2)
    assert used.who == "your function" and used.calls == 3 * 2 * 2 and kv_heads.pooled is own
    stored = load_file(tmp_path / "own" / "model.safetensors")
    again = load_file(tmp_path / "readers" / "model.safetensors")
    assert set(stored) == set(again)
    for name, tensor in stored.items():
        torch.testing.assert_close(again[name], tensor, msg=name)
    # That it is this function that counts: one that keeps the first head of a group.
    with POOL._swapped(lambda rows, heads, groups: rows[: len(rows) * groups // heads]):
        kv_heads.with_kv_heads(tmp_path / "mha", tmp_path / "first", 2)
    before = load_file(tmp_path / "mha" / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.weight"
    assert torch.equal(load_file(tmp_path / "first" / "model.safetensors")[name], before[name][: len(stored[name])])


def test_latents_are_compared_with_the_readers_query(tmp_path: Path) -> None:
    make_tiny("deepseek-v2-lite", tmp_path)
    llm, own = open_llm(tmp_path), torch_native.absorb
    before = tokens(llm)
    with ABSORB.use(ABSORB.function) as used:
        assert tokens(llm) == before
    assert used.who == "your function" and used.calls >= 3 * 4 * 5 and torch_native.absorb is own
    with ABSORB._swapped(lambda query, up: [0.0] * len(up[0])):
        assert tokens(llm) != before
    assert tokens(llm) == before


def test_a_bias_is_averaged_like_a_column() -> None:
    with POOL._swapped(POOL.function):
        assert kv_heads.pooled(torch.tensor([1.0, 2.0, 3.0, 6.0]), 2, 1).tolist() == [2.0, 4.0]
