"""Rotary tables against transformers' own rotary modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

from workbench.errors import UsageError
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config, shipped_names
from workbench.model.rope import rope_table

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}


def theirs(config: ModelConfig, parameters: dict[str, Any], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    built = LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=parameters,
    )
    cos, sin = LlamaRotaryEmbedding(built)(torch.zeros(1), torch.arange(length)[None])
    return cos[0], sin[0]


@pytest.mark.parametrize("name", shipped_names())
def test_tables_of_shipped_models_equal_transformers_to_the_bit(name: str) -> None:
    raw = shipped_config(name)
    config = ModelConfig.from_dict(raw)
    scaling = raw.get("rope_scaling") or {"rope_type": "default"}
    length = min(config.max_position_embeddings, 20_000)
    cos, sin = theirs(config, {"rope_theta": raw["rope_theta"], **scaling}, length)
    ours_cos, ours_sin = rope_table(config, length)
    assert ours_cos.dtype == torch.float32 and ours_cos.shape == (length, config.head_dim // 2)
    for ours, full in ((ours_cos, cos), (ours_sin, sin)):
        # Theirs holds every angle twice, once for each half of the head.
        assert torch.equal(full[:, : config.head_dim // 2], full[:, config.head_dim // 2 :])
        assert torch.equal(ours, full[:, : config.head_dim // 2])


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"type": "linear", "factor": 2.5},
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 16.0,
            "original_max_position_embeddings": 64,
        },
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        {**YARN, "beta_fast": 8, "beta_slow": 2.5, "truncate": False},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 0, "attention_factor": 1.75},
        {**YARN, "original_max_position_embeddings": 8, "beta_slow": 3},
    ],
)
def test_scaled_tables_equal_transformers(scaling: dict[str, Any]) -> None:
    config = ModelConfig.from_dict({**shipped_config("llama-2-7b"), "rope_scaling": scaling})
    cos, sin = theirs(config, {"rope_theta": config.rope_theta, **scaling}, 300)
    exact = "yarn" not in scaling.values()  # there torch multiplies in another order
    for ours, full in zip(rope_table(config, 300), (cos, sin), strict=True):
        wanted = full[:, : config.head_dim // 2]
        assert torch.equal(ours, wanted) if exact else torch.allclose(ours, wanted, atol=3e-5, rtol=0)
    plain, _ = rope_table(replace(config, rope_scaling=None), 300)
    assert not torch.allclose(plain, rope_table(config, 300)[0], atol=1e-2)


def test_scaling_that_is_not_known_is_refused() -> None:
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    with pytest.raises(UsageError, match="'dynamic'"):
        rope_table(ModelConfig.from_dict({**shipped_config("llama-2-7b"), "rope_scaling": scaling}), 4)
