"""Reads the keys of a Hugging Face ``config.json`` into the fields of `ModelConfig`.

Two generations of keys are accepted: transformers 4 (``rope_theta``, ``rope_scaling``, ``torch_dtype``) and 5
(``rope_parameters``, ``dtype``), and the older names of GPT-2 (``n_embd`` …). Configs of models that also see or hear
keep the decoder's own keys one level down (``text_config``); that part is read.
"""

from __future__ import annotations

from typing import Any

from workbench.errors import UsageError
from workbench.model.architecture import FAMILIES, Experts, Family, LatentAttention, RopeScaling

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


def read_fields(hf: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `ModelConfig` for the parsed JSON ``hf``. Raises UsageError naming a key that is missing."""
    for nested in ("text_config", "llm_config", "language_config"):
        if isinstance(hf.get(nested), dict):
            hf = {"dtype": _first(hf, "dtype", "torch_dtype"), **hf[nested]}
    model_type = str(hf.get("model_type") or "unknown")
    family = FAMILIES.get(model_type, Family())
    sizes = {name: _size(hf, name) for name in ("hidden_size", "num_layers", "num_heads", "vocab_size")}
    hidden, layers, heads = sizes["hidden_size"], sizes["num_layers"], sizes["num_heads"]
    kv_heads = hf.get("num_key_value_heads") or (1 if hf.get("multi_query") else heads)
    window, sliding = _windows(hf, family, layers)
    rope_theta, rope_scaling, partial = _rope(hf, family)
    eos = hf.get("eos_token_id")
    return {
        **sizes,
        "model_type": model_type,
        "architecture": next(iter(hf.get("architectures") or []), model_type),
        "intermediate_size": int(_first(hf, *_NAMES["intermediate_size"]) or 4 * hidden),
        "num_kv_heads": int(kv_heads),
        "head_dim": int(hf.get("head_dim") or family.head_dim or hidden // heads),
        "max_position_embeddings": int(_first(hf, *_NAMES["max_position_embeddings"]) or 2048),
        "rms_norm_eps": float(_first(hf, *_NAMES["eps"]) or 1e-6),
        "hidden_act": str(_first(hf, *_NAMES["hidden_act"]) or "silu"),
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling,
        "partial_rotary_factor": partial,
        "tie_word_embeddings": _flag(hf.get("tie_word_embeddings"), family.tied),
        "qkv_bias": _bias(hf, "qkv_bias", family.qkv_bias, family),
        "o_bias": _bias(hf, "o_bias", family.o_bias, family),
        "mlp_bias": _bias(hf, "mlp_bias", family.mlp_bias, family),
        "qk_norm": family.qk_norm,
        "sliding_window": window,
        "sliding_layers": sliding,
        "dtype": str(_first(hf, "dtype", "torch_dtype") or "float32").removeprefix("torch."),
        "bos_token_id": hf.get("bos_token_id"),
        "eos_token_ids": tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (int(eos),),
        "quant_method": (hf.get("quantization_config") or {}).get("quant_method"),
        "latent": _latent(hf),
        "experts": _experts(hf, layers),
    }


def _first(hf: dict[str, Any], *keys: str) -> Any:
    return next((hf[key] for key in keys if hf.get(key) is not None), None)


def _size(hf: dict[str, Any], name: str) -> int:
    value = _first(hf, *_NAMES[name])
    if value is None:
        raise UsageError(f"config.json has no {_NAMES[name][0]!r}: it describes no decoder that can be read here")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"config.json: {_NAMES[name][0]}={value!r} must be a whole number above 0")
    return value


def _flag(value: Any, absent: bool) -> bool:
    return absent if value is None else bool(value)


def _bias(hf: dict[str, Any], name: str, fixed: bool | None, family: Family) -> bool:
    return _flag(_first(hf, *_NAMES[name]), family.biased) if fixed is None else fixed


def _windows(hf: dict[str, Any], family: Family, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    """The window (in tokens, the token itself included) and, for each layer, whether it looks through it."""
    window, kinds, none = hf.get("sliding_window"), hf.get("layer_types"), (None, (False,) * layers)
    if not window or family.sliding == "never" or not _flag(hf.get("use_sliding_window"), not family.window_opt_in):
        return none
    if family.sliding == "all":
        return int(window), (True,) * layers
    if kinds:
        if len(kinds) != layers:
            raise UsageError(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
        sliding = tuple(kind == "sliding_attention" for kind in kinds)
    elif family.sliding == "max_window_layers":
        first = int(_first(hf, "max_window_layers") if hf.get("max_window_layers") is not None else 28)
        sliding = tuple(layer >= first for layer in range(layers))
    else:
        pattern = int(hf.get("sliding_window_pattern") or family.sliding_pattern)
        sliding = tuple(bool(pattern and (layer + 1) % pattern) for layer in range(layers))
    return (int(window), sliding) if any(sliding) else none


def _rope(hf: dict[str, Any], family: Family) -> tuple[float, RopeScaling | None, float]:
    """Base of the rotary frequencies, their scaling, and the share of each head that is rotated."""
    given = _first(hf, "rope_parameters", "rope_scaling") or {}
    if given and all(isinstance(value, dict) or value is None for value in given.values()):
        # One set for each kind of layer (Gemma 3): the full-attention one stands for all.
        given = given.get("full_attention") or next((value for value in given.values() if value), {})
    theta = float(given.get("rope_theta") or _first(hf, "rope_theta", "rotary_emb_base") or family.rope_theta)
    partial = float(_first({**hf, **given}, "partial_rotary_factor", "rotary_pct") or 1.0)
    kind = str(given.get("rope_type") or given.get("type") or "default")
    if kind == "default":
        return theta, None, partial
    if kind in ("linear", "llama3") and given.get("factor") is None:
        raise UsageError(f"config.json: rope scaling {kind!r} has no 'factor'")
    original = _first(hf, "original_max_position_embeddings") or given.get("original_max_position_embeddings")
    scaling = RopeScaling(
        kind=kind,
        factor=float(given.get("factor") or 1.0),
        low_freq_factor=float(given.get("low_freq_factor") or 1.0),
        high_freq_factor=float(given.get("high_freq_factor") or 4.0),
        original_max_position_embeddings=int(original or hf.get("max_position_embeddings") or 8192),
    )
    return theta, scaling, partial


def _latent(hf: dict[str, Any]) -> LatentAttention | None:
    if not hf.get("kv_lora_rank"):
        return None
    return LatentAttention(
        kv_lora_rank=int(hf["kv_lora_rank"]),
        qk_rope_head_dim=int(hf.get("qk_rope_head_dim") or 64),
        qk_nope_head_dim=int(hf.get("qk_nope_head_dim") or 128),
        v_head_dim=int(hf.get("v_head_dim") or 128),
        q_lora_rank=hf.get("q_lora_rank"),
    )


def _experts(hf: dict[str, Any], layers: int) -> Experts | None:
    count = _first(hf, *_NAMES["num_experts"])
    if not count or count < 2:
        return None
    width = int(_first(hf, "moe_intermediate_size", "intermediate_size") or 0)
    shared = int(hf.get("shared_expert_intermediate_size") or width * (hf.get("n_shared_experts") or 0))
    dense_first, dense_layers = int(hf.get("first_k_dense_replace") or 0), hf.get("mlp_only_layers") or []
    step = int(_first(hf, "decoder_sparse_step", "moe_layer_freq") or 1)
    # Qwen counts layers from one (every step-th has experts), DeepSeek from zero.
    offset = 1 if "decoder_sparse_step" in hf else 0
    return Experts(
        num_experts=int(count),
        experts_per_token=int(_first(hf, "num_experts_per_tok", "num_experts_per_token", "top_k_experts") or 1),
        intermediate_size=width,
        shared_intermediate_size=shared,
        shared_gate="shared_expert_intermediate_size" in hf,
        sparse_layers=tuple(
            layer >= dense_first and layer not in dense_layers and (layer + offset) % step == 0
            for layer in range(layers)
        ),
    )
