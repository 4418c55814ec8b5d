"""Known families: every kept config.json is read by the engine, and what it keeps a token agrees with arithmetic."""

from __future__ import annotations

import pytest

from workbench.errors import UsageError
from workbench.lab import families, family, family_config, small_config
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_names

KEPT = {
    # layers, query heads, KV heads (None: a latent), numbers of a head or of the latent
    "llama-2-7b": (32, 32, 32, 128),
    "llama-2-13b": (40, 40, 40, 128),
    "llama-2-70b": (80, 64, 8, 128),
    "llama-3.1-8b": (32, 32, 8, 128),
    "llama-3-70b": (80, 64, 8, 128),
    "gemma-2b": (18, 8, 1, 256),
    "deepseek-67b": (95, 64, 8, 128),
    "deepseek-v2": (60, 128, None, 512 + 64),
    "deepseek-v3": (61, 128, None, 512 + 64),
}
BILLIONS = {"llama-2-13b": 13.0, "llama-2-70b": 69.0, "llama-3-70b": 70.6, "deepseek-67b": 67.4, "deepseek-v2": 235.7,
            "deepseek-v3": 671.0}  # fmt: skip
"""Parameters as their makers publish them, without layers that predict further tokens."""


@pytest.mark.parametrize("name", KEPT)
def test_what_a_token_keeps(name: str) -> None:
    layers, heads, kv_heads, width = KEPT[name]
    model = family(name)
    assert (model.num_layers, model.num_heads) == (layers, heads)
    numbers = layers * (width if kv_heads is None else 2 * kv_heads * width)
    assert model.kv_bytes_per_token("bfloat16") == 2 * numbers
    kind = {None: "MLA", 1: "MQA", heads: "MHA"}.get(kv_heads, "GQA")
    assert model.attention_kind == kind


@pytest.mark.parametrize("name", BILLIONS)
def test_its_size_is_the_published_one(name: str) -> None:
    assert family(name).num_parameters / 1e9 == pytest.approx(BILLIONS[name], rel=0.01)


def test_every_name_can_be_read_and_stands_once() -> None:
    names = families.family_names()
    assert names == sorted(set(names)) and set(shipped_names()) < set(names) and set(KEPT) <= set(names)
    for name in names:
        assert ModelConfig.from_dict(family_config(name), name).num_layers > 0


@pytest.mark.parametrize("name", ["llama-9", "", "../course"])
def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"no config\.json is kept for .* there are deepseek-67b, .*smollm2-135m"):
        family_config(name)


def test_a_small_model_has_its_familys_attention_and_no_experts() -> None:
    for base, kind in (("llama-2-7b", "MHA"), ("deepseek-v2", "MLA")):
        small = ModelConfig.from_dict(small_config(base))
        assert (small.attention_kind, small.num_heads, small.num_layers) == (kind, 8, 2)
        assert small.num_parameters < 10e6
    assert ModelConfig.from_dict(small_config("llama-2-7b", num_key_value_heads=1)).attention_kind == "MQA"
    assert family_config("deepseek-v2")["n_routed_experts"] == 160, "what was read is not changed"
