"""Tiny random models with latent attention or a mixture of experts, made by transformers; see `tests.model.tiny`."""

from __future__ import annotations

from typing import Any

from transformers.models.deepseek_v2 import DeepseekV2Config
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.mixtral import MixtralConfig
from transformers.models.qwen2_moe import Qwen2MoeConfig
from transformers.models.qwen3_moe import Qwen3MoeConfig

_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
# The inner norms have an eps of their own: one so far from it shows which is used.
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-2,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
_GROUPS = {"n_group": 4, "topk_group": 2}
_SMALL = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}

MIXED: dict[str, tuple[type, dict[str, Any]]] = {
    "deepseek-v2-lite": (
        DeepseekV2Config,
        {**_LATENT, "q_lora_rank": None, "n_shared_experts": 2, "attention_bias": True, "mlp_bias": True},
    ),
    "deepseek-v2": (
        DeepseekV2Config,
        {
            **_LATENT,
            **_GROUPS,
            "q_lora_rank": 20,
            "n_shared_experts": 1,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.7,
            "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek-v3": (
        DeepseekV3Config,
        {
            **_LATENT,
            **_GROUPS,
            "q_lora_rank": 20,
            "n_shared_experts": 1,
            "rope_parameters": {**_YARN, "mscale": 0.5, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek-v3-halves": (
        DeepseekV3Config,
        {
            **_LATENT,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "rope_interleave": False,
            "norm_topk_prob": False,
        },
    ),
    "qwen3-moe": (
        Qwen3MoeConfig,
        {"head_dim": 24, "num_experts": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, **_SMALL},
    ),
    "qwen2-moe": (
        Qwen2MoeConfig,
        {"num_experts": 5, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1], **_SMALL},
    ),
    "mixtral": (MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9}),
}
"""By name: the transformers configuration class and what differs from the common sizes."""
