"""The definition of routing against the routers of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Config, DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3TopkRouter
from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeTopKRouter

import kernels

HIDDEN, EXPERTS = 16, 24
V2: dict[str, Any] = {"n_routed_experts": EXPERTS, "n_group": 6, "topk_group": 2, "num_experts_per_tok": 5}
GROUPS: dict[str, Any] = {"num_groups": 6, "groups_per_token": 2}

CASES: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "mixtral": (
        MixtralTopKRouter, MixtralConfig, {"num_local_experts": EXPERTS, "num_experts_per_tok": 2},
        {"experts_per_token": 2, "normalized": True},
    ),
    "qwen3": (
        Qwen3MoeTopKRouter, Qwen3MoeConfig, {"num_experts": EXPERTS, "num_experts_per_tok": 5},
        {"experts_per_token": 5},
    ),
    "qwen3 normalized": (
        Qwen3MoeTopKRouter, Qwen3MoeConfig, {"num_experts": EXPERTS, "num_experts_per_tok": 5, "norm_topk_prob": True},
        {"experts_per_token": 5, "normalized": True},
    ),
    "v2": (DeepseekV2TopkRouter, DeepseekV2Config, V2, {"experts_per_token": 5}),
    "v2 in groups": (
        DeepseekV2TopkRouter, DeepseekV2Config,
        {**V2, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0},
        {"experts_per_token": 5, **GROUPS, "scale": 16.0},
    ),
    "v3": (
        DeepseekV3TopkRouter, DeepseekV3Config, V2,
        {"experts_per_token": 5, **GROUPS, "group_best": 2, "scoring": "sigmoid", "normalized": True, "scale": 2.5},
    ),
    "v3 of one group": (
        DeepseekV3TopkRouter, DeepseekV3Config, {**V2, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
        {"experts_per_token": 5, "scoring": "sigmoid", "scale": 2.5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_experts_and_weights_equal_those_of_transformers(name: str) -> None:
    kind, config, changes, options = CASES[name]
    generator = torch.Generator().manual_seed(3)
    router = kind(config(hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=4, **changes))
    router.weight.data.normal_(generator=generator)
    correction = getattr(router, "e_score_correction_bias", None)
    if correction is not None:
        correction.normal_(0, 0.3, generator=generator)
    hidden = torch.randn(200, HIDDEN, generator=generator)
    with torch.no_grad():
        logits, weights, chosen = router(hidden)
        ours, counts_for = kernels.route(logits, correction, **options)
    assert ours.dtype == torch.int64 and counts_for.dtype == torch.float32
    order, our_order = chosen.argsort(-1), ours.argsort(-1)
    assert torch.equal(chosen.gather(1, order), ours.gather(1, our_order))
    torch.testing.assert_close(weights.gather(1, order), counts_for.gather(1, our_order), atol=1e-6, rtol=1e-6)
    assert len(set(ours.flatten().tolist())) > EXPERTS // 2
    if "num_groups" in options:
        assert max(len(set((row // 4).tolist())) for row in ours) == options["groups_per_token"]


def test_no_tokens_are_no_trouble() -> None:
    chosen, counts_for = kernels.route(torch.zeros(0, 8), experts_per_token=2, num_groups=4, groups_per_token=2)
    assert chosen.shape == counts_for.shape == (0, 2)
