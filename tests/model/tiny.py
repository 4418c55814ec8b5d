"""Tiny random models of every family, made by transformers and saved as folders: the oracle and the subject at once.

Matrices are drawn wide, biases and norm weights away from 0 and 1: logits spread out, so the best token is rarely in
doubt, and a part that a decoder leaves out (a bias, a norm) shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from tests.model.tiny_latent import MIXED

_SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Short, so that a head of 16 channels has pairs on both sides of the blend and in it.
    "original_max_position_embeddings": 64,
}

FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama2": (LlamaConfig, {"num_key_value_heads": 4}),
    "llama3": (LlamaConfig, {"num_attention_heads": 8, "head_dim": 16, "rope_parameters": _LLAMA3_ROPE}),
    "llama-linear": (
        LlamaConfig,
        {
            "num_key_value_heads": 1,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
        },
    ),
    "qwen2": (Qwen2Config, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2-window": (Qwen2Config, {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": (Qwen3Config, {"head_dim": 24, "tie_word_embeddings": True}),
    "mistral": (MistralConfig, {"sliding_window": 7}),
    "smollm2": (
        LlamaConfig,
        {
            "hidden_size": 72,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        },
    ),
}
"""By name: the transformers configuration class and what differs from the common sizes."""


def make_tiny(
    family: str,
    path: Path,
    seed: int = 0,
    max_shard_size: str = "5GB",
    dtype: torch.dtype = torch.float32,
    stacked: bool = False,
    **overrides: Any,
) -> PreTrainedModel:
    """Builds a model of ``family``, saves it in ``path`` and returns it, in eval mode, with plain (eager) attention.

    ``max_shard_size`` splits the file; ``overrides`` change the configuration. What is returned holds the values saved.
    ``stacked``: experts are saved as transformers 5 holds them, not one by one as published checkpoints have them.
    """
    kind, own = {**FAMILIES, **MIXED}[family]
    config = kind(**{**_SIZES, **own, **overrides})
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1.0 + 0.3 * drawn)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * drawn)
            else:
                parameter.copy_(drawn * (0.25 if "embed" in name or "lm_head" in name else 0.2))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    model = model.to(dtype).eval()
    model.save_pretrained(path, max_shard_size=max_shard_size, save_original_format=not stacked)
    return model
