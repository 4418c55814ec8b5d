"""What tells one decoder family from another, as data: a table of traits and the parts only some models have."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for longer contexts (``linear``, ``llama3``, ``yarn`` …)."""

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    """Of ``llama3``, as the next."""
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    """Of ``yarn``, as all that follow: pairs that turn more often than this in the old context are kept …"""
    beta_slow: float = 1.0
    """… and those that turn less often than this are stretched in full."""
    whole_pairs: bool = True
    """Whether the two bounds are rounded outwards to whole pairs (``truncate``)."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    """With it latent attention scales its scores up, by the square of ``0.1 · mscale_all_dim · ln(factor) + 1``."""
    attention_factor: float | None = None
    """What sines and cosines are multiplied with; None: worked out from ``factor`` and the two mscales."""

    @property
    def amplitude(self) -> float:
        """What sines and cosines are multiplied with."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor, 1.0)


def yarn_mscale(factor: float, weight: float) -> float:
    """YaRN's remedy for flatter scores in a context ``factor`` times as long (arXiv 2309.00071, section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token chooses its experts, and how much each of them counts."""

    scoring: str = "softmax"
    """Of the router's logits: ``softmax`` over all experts or ``sigmoid`` of each (``scoring_func``)."""
    method: str = "greedy"
    """``topk_method``: ``greedy``, or within groups ``group_limited_greedy`` (DeepSeek-V2) or ``noaux_tc`` (V3)."""
    num_groups: int = 1
    groups_per_token: int = 1
    """A token's experts come from so many of the groups …"""
    group_best: int = 1
    """… those whose so many best scores add up to the most."""
    corrected: bool = False
    """Whether a learned bias is added to scores for choosing, though not for counting."""
    normalized: bool = False
    """Whether the chosen experts' scores are divided by their sum (``norm_topk_prob``)."""
    scale: float = 1.0
    """What every score is multiplied with in the end (``routed_scaling_factor``)."""


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
    routing: Routing = Routing()


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
    latent: bool = False
    """Whether the decoder knows it with latent attention."""
    routing: Routing | None = None
    """What absent keys of its experts mean; None: the decoder does not know it with experts."""
    methods: tuple[str, ...] = ("greedy",)
    """Ways to choose experts that are its own."""
    normalizes: bool = True
    """Whether its code divides scores by their sum where the config says so; DeepSeek-V2's implementations differ."""


FAMILIES: dict[str, Family] = {
    "llama": Family(qkv_bias=None, o_bias=None, mlp_bias=None, sliding="never"),
    "mistral": Family(sliding="all"),
    "qwen2": Family(qkv_bias=True, sliding="max_window_layers", window_opt_in=True),
    "qwen3": Family(
        qkv_bias=None, o_bias=None, qk_norm="head", head_dim=128, sliding="max_window_layers", window_opt_in=True
    ),
    "qwen2_moe": Family(qkv_bias=None, biased=True, window_opt_in=True, routing=Routing()),
    "qwen3_moe": Family(
        qkv_bias=None, o_bias=None, qk_norm="head", sliding="all", window_opt_in=True, routing=Routing()
    ),
    "mixtral": Family(sliding="all", rope_theta=1e6, routing=Routing(normalized=True)),
    "deepseek_v2": Family(
        qkv_bias=None,
        o_bias=None,
        mlp_bias=None,
        sliding="never",
        latent=True,
        routing=Routing(),
        methods=("greedy", "group_limited_greedy"),
        normalizes=False,
    ),
    "deepseek_v3": Family(
        qkv_bias=None,
        o_bias=None,
        sliding="never",
        latent=True,
        routing=Routing("sigmoid", "noaux_tc", 8, 4, group_best=2, corrected=True, normalized=True, scale=2.5),
        methods=("noaux_tc",),
    ),
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

RUNNABLE = (
    "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3",
)  # fmt: skip
"""Families the decoder runs. SmolLM2 and Llama 2/3 call themselves ``llama``, Qwen2.5 ``qwen2``."""
