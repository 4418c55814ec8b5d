"""Reads the keys of a Hugging Face ``config.json`` into the fields of `ModelConfig`.

Two generations of keys are accepted: transformers 4 (``rope_theta``, ``rope_scaling``, ``torch_dtype``) and 5
(``rope_parameters``, ``dtype``), and the older names of GPT-2 (``n_embd`` …). Configs of models that also see or hear
keep the decoder's own keys one level down (``text_config``); that part is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workbench.attention.latent_shape import LatentAttention
from workbench.errors import UsageError
from workbench.model.architecture import FAMILIES, Experts, Family, RopeScaling, Routing
from workbench.model.bits import bits_of
from workbench.model.config_keys import Keys

MAX_LAYERS = 10_000
MAX_ROPE_THETA = 1e15

_NAMES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads"),
    "vocab_size": ("vocab_size",),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length"),
    "eps": ("rms_norm_eps", "norm_epsilon", "layer_norm_epsilon", "layer_norm_eps"),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "activation"),
    "qkv_bias": ("qkv_bias", "attention_bias", "use_bias"),
    "o_bias": ("attention_bias", "use_bias"),
    "mlp_bias": ("mlp_bias", "use_bias"),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
}


def read_fields(hf: dict[str, Any], source: str = "config.json") -> dict[str, Any]:
    """Keyword arguments of `ModelConfig` for the parsed JSON ``hf``.

    Raises WorkbenchError that names ``source``, the key, the value and what it must be.
    """
    outer = keys = Keys(hf, source)
    for nested in ("text_config", "llm_config", "language_config"):
        if isinstance(hf.get(nested), dict):
            keys = outer.table(nested)
    model_type = keys.text("model_type", default="unknown")
    family = FAMILIES.get(model_type, Family())
    hidden, heads = keys.needed(*_NAMES["hidden_size"]), keys.needed(*_NAMES["num_heads"])
    layers = keys.needed(*_NAMES["num_layers"], most=MAX_LAYERS)
    window, sliding = _windows(keys, family, layers)
    rope_theta, rope_scaling, partial = _rope(keys, family)
    bos = keys.token_ids("bos_token_id")
    latent = _latent(keys)
    return {
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "vocab_size": keys.needed(*_NAMES["vocab_size"]),
        "model_type": model_type,
        "architecture": next(iter(keys.texts("architectures")), model_type),
        "intermediate_size": keys.whole(*_NAMES["intermediate_size"], default=4 * hidden),
        "num_kv_heads": _kv_heads(keys, heads),
        "head_dim": latent.query_dim if latent else _head_dim(keys, family, hidden, heads),
        "max_position_embeddings": keys.whole(*_NAMES["max_position_embeddings"], default=2048),
        "rms_norm_eps": _eps(keys),
        "hidden_act": keys.text(*_NAMES["hidden_act"], default="silu"),
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling,
        "partial_rotary_factor": partial,
        "tie_word_embeddings": keys.flag("tie_word_embeddings", default=family.tied),
        "qkv_bias": _bias(keys, "qkv_bias", family.qkv_bias, family),
        "o_bias": _bias(keys, "o_bias", family.o_bias, family),
        "mlp_bias": _bias(keys, "mlp_bias", family.mlp_bias, family),
        "qk_norm": family.qk_norm,
        "sliding_window": window,
        "sliding_layers": sliding,
        "dtype": _dtype(outer, _dtype(keys, None)),
        "bos_token_id": bos[0] if bos else None,
        "eos_token_ids": keys.token_ids("eos_token_id"),
        "quant_method": keys.table("quantization_config").text("quant_method", default="") or None,
        "latent": latent,
        "experts": _experts(keys, family, layers),
        "prediction_layers": keys.whole("num_nextn_predict_layers", default=0, least=0, most=MAX_LAYERS),
    }


def _kv_heads(keys: Keys, heads: int) -> int:
    found: int = keys.whole("num_key_value_heads", default=1 if keys.flag("multi_query", default=False) else heads)
    if heads % found:
        raise keys.wrong("num_key_value_heads", f"a divisor of the {heads} attention heads, which share them evenly")
    return found


def _head_dim(keys: Keys, family: Family, hidden: int, heads: int) -> int:
    found: int | None = keys.whole("head_dim", default=family.head_dim)
    if found is None and hidden < heads:
        raise keys.wrong("head_dim", f"given where hidden_size={hidden} is less than the {heads} attention heads")
    return found or hidden // heads


def _eps(keys: Keys) -> float:
    """Absent it has a default; written as ``null``, and under no other name, it is a mistake."""
    names = _NAMES["eps"]
    empty = [name for name in names if keys.is_null(name)]
    if empty and not any(name in keys for name in names):
        raise keys.wrong(empty[0], "a number above 0 and at most 1")
    return keys.number(*names, default=1e-6, most=1.0)


def _dtype(keys: Keys, inner: str | None) -> str:
    name = keys.text("dtype", "torch_dtype", default=inner or "float32").removeprefix("torch.")
    try:
        bits_of(name)
    except UsageError as error:
        raise keys.wrong("dtype" if "dtype" in keys else "torch_dtype", f"a dtype that is known ({error})") from None
    return name


def _bias(keys: Keys, name: str, fixed: bool | None, family: Family) -> bool:
    return keys.flag(*_NAMES[name], default=family.biased) if fixed is None else fixed


def _windows(keys: Keys, family: Family, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """The window (in tokens, the token itself included) and, for each layer, whether it looks through it."""
    window, none = keys.whole("sliding_window", default=0, least=0), (None, (False,) * layers)
    used = keys.flag("use_sliding_window", default=not family.window_opt_in)
    if not window or family.sliding == "never" or not used:
        return none
    if family.sliding == "all":
        return window, (True,) * layers
    if kinds := keys.texts("layer_types"):
        if len(kinds) != layers:
            raise keys.wrong("layer_types", f"a list of {layers} entries, one a layer; it has {len(kinds)}")
        sliding = tuple(kind == "sliding_attention" for kind in kinds)
    elif family.sliding == "max_window_layers":
        first = keys.whole("max_window_layers", default=28, least=0)
        sliding = tuple(layer >= first for layer in range(layers))
    else:
        pattern = keys.whole("sliding_window_pattern", default=family.sliding_pattern, least=0)
        sliding = tuple(bool(pattern and (layer + 1) % pattern) for layer in range(layers))
    return (window, sliding) if any(sliding) else none


def _rope(keys: Keys, family: Family) -> tuple[float, RopeScaling | None, float]:
    """Base of the rotary frequencies, their scaling, and the share of each head that is rotated."""
    given = keys.table("rope_parameters", "rope_scaling")
    if kinds := given.tables():
        # One set for each kind of layer (Gemma 3): the full-attention one stands for all.
        given = given.table("full_attention" if "full_attention" in kinds else kinds[0])
    outer = keys.number("rope_theta", "rotary_emb_base", default=family.rope_theta, most=MAX_ROPE_THETA)
    theta = given.number("rope_theta", default=outer, most=MAX_ROPE_THETA)
    names = ("partial_rotary_factor", "rotary_pct")
    partial = given.number(*names, default=keys.number(*names, default=1.0, most=1.0), most=1.0)
    kind = given.text("rope_type", "type", default="default")
    if kind == "default":
        return theta, None, partial
    if kind in ("linear", "llama3") and "factor" not in given:
        raise given.wrong("factor", f"given for rope scaling {kind!r}")
    positions = keys.whole(*_NAMES["max_position_embeddings"], default=8192)
    original = given.whole("original_max_position_embeddings", default=positions)
    original = keys.whole("original_max_position_embeddings", default=original)
    scaling = RopeScaling(
        kind=kind,
        factor=given.number("factor", default=max(1.0, positions / original) if kind == "yarn" else 1.0, most=1e6),
        low_freq_factor=given.number("low_freq_factor", default=1.0, most=1e6),
        high_freq_factor=given.number("high_freq_factor", default=4.0, most=1e6),
        original_max_position_embeddings=original,
        beta_fast=given.number("beta_fast", default=32.0, most=1e6),
        beta_slow=given.number("beta_slow", default=1.0, most=1e6),
        whole_pairs=given.flag("truncate", default=True),
        mscale=given.number("mscale", default=0.0, most=1e6, zero=True),
        mscale_all_dim=given.number("mscale_all_dim", default=0.0, most=1e6, zero=True),
        attention_factor=given.number("attention_factor", default=0.0, most=1e6) or None,
    )
    if kind == "yarn" and theta <= 1:
        holder = given if "rope_theta" in given else keys
        raise holder.wrong("rope_theta", "above 1 for rope scaling 'yarn'")
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise given.wrong("high_freq_factor", f"above low_freq_factor={scaling.low_freq_factor:g}")
    return theta, scaling, partial


def _latent(keys: Keys) -> LatentAttention | None:
    rank = keys.whole("kv_lora_rank", default=0, least=0)
    if not rank:
        return None
    return LatentAttention(
        kv_lora_rank=rank,
        qk_rope_head_dim=keys.whole("qk_rope_head_dim", default=64),
        qk_nope_head_dim=keys.whole("qk_nope_head_dim", default=128),
        v_head_dim=keys.whole("v_head_dim", default=128),
        q_lora_rank=keys.whole("q_lora_rank"),
        interleaved=keys.flag("rope_interleave", default=True),
    )


def _experts(keys: Keys, family: Family, layers: int) -> Experts | None:
    count = keys.whole(*_NAMES["num_experts"], default=0, least=0)
    if count < 2:
        return None
    width = keys.whole("moe_intermediate_size", "intermediate_size", default=0)
    shared = width * keys.whole("n_shared_experts", default=0, least=0, most=count)
    dense_first, dense_layers = keys.whole("first_k_dense_replace", default=0, least=0), keys.numbers("mlp_only_layers")
    step = keys.whole("decoder_sparse_step", "moe_layer_freq", default=1)
    # Qwen counts layers from one (every step-th has experts), DeepSeek from zero.
    offset = 1 if "decoder_sparse_step" in keys else 0
    names = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")
    # A guess would do for counting, not for running.
    chosen = keys.needed(*names, most=count) if family.routing else keys.whole(*names, default=1, most=count)
    return Experts(
        num_experts=count,
        experts_per_token=chosen,
        intermediate_size=width,
        shared_intermediate_size=keys.whole("shared_expert_intermediate_size", default=0, least=0) or shared,
        shared_gate="shared_expert_intermediate_size" in keys,
        sparse_layers=tuple(
            layer >= dense_first and layer not in dense_layers and (layer + offset) % step == 0
            for layer in range(layers)
        ),
        routing=_routing(keys, family, count, chosen),
    )


def _routing(keys: Keys, family: Family, count: int, chosen: int) -> Routing:
    """How ``chosen`` of ``count`` experts are found."""
    usual = family.routing or Routing()
    routing = replace(
        usual,
        scoring=keys.text("scoring_func", default=usual.scoring),
        method=keys.text("topk_method", default=usual.method),
        normalized=keys.flag("norm_topk_prob", default=usual.normalized),
        scale=keys.number("routed_scaling_factor", default=usual.scale, most=1e6),
    )
    groups = keys.whole("n_group", default=usual.num_groups)
    if routing.method == "greedy" or groups == 1:
        return replace(routing, num_groups=1, groups_per_token=1)
    if count % groups or count // groups < usual.group_best:
        raise keys.wrong("n_group", f"a divisor of the {count} experts that leaves {usual.group_best} or more a group")
    kept = keys.whole("topk_group", default=min(groups, usual.groups_per_token), most=groups)
    if chosen > kept * (count // groups):
        raise keys.wrong("topk_group", f"enough of the groups of {count // groups} for {chosen} experts a token")
    return replace(routing, num_groups=groups, groups_per_token=kept)
