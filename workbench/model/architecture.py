"""What tells one decoder family from another, as data: a table of traits and the parts only some models have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for longer contexts. Fields other than ``factor`` belong to ``llama3``."""

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values rebuilt from one small latent."""

    kv_lora_rank: int
    """Width of the latent that is cached in place of keys and values."""
    qk_rope_head_dim: int
    """Width of the one rotated key that all heads share; cached beside the latent."""
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    """Width of the query's own bottleneck; None where queries are projected directly."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of one MLP."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """Inner width of one routed expert."""
    shared_intermediate_size: int = 0
    """Inner width of the expert that every token passes through; 0 = there is none."""
    shared_gate: bool = False
    """Whether a learned gate (one row of hidden_size weights) scales the shared expert."""
    sparse_layers: tuple[bool, ...] = ()
    """For each layer, whether it has experts; the others have a plain MLP."""


@dataclass(frozen=True, slots=True)
class Family:
    """Traits that config.json does not spell out because the family's code fixes them.

    A bias of None means: what the config says (``attention_bias``, ``qkv_bias``, ``use_bias``, ``mlp_bias``).
    """

    qkv_bias: bool | None = False
    o_bias: bool | None = False
    mlp_bias: bool | None = False
    biased: bool = False
    """What an absent bias key means."""
    qk_norm: str = "none"
    """``none``, ``head`` (a weight of head_dim, shared by the heads) or ``row`` (a weight over all heads)."""
    gated_mlp: bool = True
    norms_per_layer: int = 2
    norm_bias: bool = False
    learned_positions: bool = False
    tied: bool = False
    """What an absent ``tie_word_embeddings`` means."""
    head_dim: int | None = None
    """What an absent ``head_dim`` means; None = hidden_size ÷ num_heads."""
    sliding: str = "layer_types"
    """How layers with a window are named: ``never``, ``all`` (if sliding_window is set), ``max_window_layers`` (from
    that layer on; overridden by layer_types) or ``layer_types``."""
    sliding_pattern: int = 0
    """Where layer_types is absent: every n-th layer sees everything, the others slide; 0 = none slides."""
    window_opt_in: bool = False
    """Whether sliding_window counts only if use_sliding_window is true."""
    rope_theta: float = 10000.0


FAMILIES: dict[str, Family] = {
    "llama": Family(qkv_bias=None, o_bias=None, mlp_bias=None, sliding="never"),
    "mistral": Family(sliding="all"),
    "qwen2": Family(qkv_bias=True, sliding="max_window_layers", window_opt_in=True),
    "qwen3": Family(
        qkv_bias=None, o_bias=None, qk_norm="head", head_dim=128, sliding="max_window_layers", window_opt_in=True
    ),
    "qwen2_moe": Family(qkv_bias=None, biased=True, window_opt_in=True),
    "qwen3_moe": Family(qkv_bias=None, o_bias=None, qk_norm="head", sliding="all", window_opt_in=True),
    "mixtral": Family(sliding="all", rope_theta=1e6),
    "deepseek_v2": Family(qkv_bias=None, o_bias=None, mlp_bias=None, sliding="never"),
    "deepseek_v3": Family(qkv_bias=None, o_bias=None, sliding="never"),
    "phi3": Family(sliding="all"),
    "granite": Family(qkv_bias=None, o_bias=None, mlp_bias=None, sliding="never"),
    "smollm3": Family(qkv_bias=None, o_bias=None, mlp_bias=None, tied=True, window_opt_in=True, rope_theta=2e6),
    "olmo2": Family(qkv_bias=None, o_bias=None, qk_norm="row", sliding="never"),
    "gemma": Family(qkv_bias=None, o_bias=None, tied=True, head_dim=256, sliding="never"),
    "gemma2": Family(qkv_bias=None, o_bias=None, norms_per_layer=4, tied=True, head_dim=256, sliding_pattern=2),
    "gemma3_text": Family(
        qkv_bias=None, o_bias=None, qk_norm="head", norms_per_layer=4, tied=True, head_dim=256, sliding_pattern=6
    ),
    "starcoder2": Family(
        qkv_bias=None,
        o_bias=None,
        mlp_bias=None,
        biased=True,
        gated_mlp=False,
        norm_bias=True,
        tied=True,
        sliding="all",
    ),
    "gpt2": Family(
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        gated_mlp=False,
        norm_bias=True,
        learned_positions=True,
        tied=True,
        sliding="never",
    ),
    "gpt_neox": Family(
        qkv_bias=None, o_bias=None, biased=True, mlp_bias=True, gated_mlp=False, norm_bias=True, sliding="never"
    ),
}
"""Families whose parameters are counted exactly (each tested against transformers). Others are taken as Llama-like."""

RUNNABLE = ("llama", "mistral", "qwen2", "qwen3")
"""Families the decoder runs. SmolLM2 and Llama 2/3 call themselves ``llama``, Qwen2.5 ``qwen2``."""
