"""GGUF metadata -> the dict that a Hugging Face ``config.json`` of the same model would hold. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from workbench.errors import UsageError, WorkbenchError
from workbench.gguf_file import GGUFFile, eos_token_ids

# GGUF architecture -> (class, model_type) of transformers.
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "mistral": ("MistralForCausalLM", "mistral"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}

# Our name -> key under the architecture's own prefix.
_REQUIRED = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
}

__all__ = ["ARCHITECTURES", "config_of", "eos_token_ids", "read_config"]


def read_config(path: str | Path) -> dict[str, Any]:
    """The Hugging Face style config of a GGUF file.

    Raises:
        UsageError: an architecture, a mixture of experts or a rope scaling that is not supported, by name.
        WorkbenchError: the file is missing or damaged, or lacks a key that every model has.
    """
    return config_of(GGUFFile(path))


def config_of(file: GGUFFile) -> dict[str, Any]:
    """As `read_config`, of a file that is already open."""
    metadata = file.metadata
    arch = metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise UsageError(
            f"{file.path}: GGUF architecture {arch!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    own = {key.removeprefix(f"{arch}."): value for key, value in metadata.items() if key.startswith(f"{arch}.")}
    if own.get("expert_count"):
        raise UsageError(f"{file.path}: a mixture of {own['expert_count']} experts is not supported")
    missing = [f"{arch}.{key}" for key in (*_REQUIRED.values(), "attention.layer_norm_rms_epsilon") if key not in own]
    missing += [name for name in ("token_embd.weight",) if name not in file.tensors]
    if missing:
        raise WorkbenchError(f"{file.path} is damaged: it lacks {', '.join(missing)}")

    config: dict[str, Any] = {ours: int(own[theirs]) for ours, theirs in _REQUIRED.items()}
    heads = config["num_attention_heads"]
    rope_theta = _short(own.get("rope.freq_base", 10000.0))
    # Only in llama files is the rotated part known to be the whole head.
    head_dim = own.get("attention.key_length") or (own.get("rope.dimension_count") if arch == "llama" else None)
    head_dim = int(head_dim or config["hidden_size"] // heads)
    window = own.get("attention.sliding_window")
    architecture, model_type = ARCHITECTURES["mistral" if window and arch == "llama" else arch]
    config |= {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "num_key_value_heads": int(own.get("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(own.get("context_length", 2048)),
        "rms_norm_eps": _short(own["attention.layer_norm_rms_epsilon"]),
        "rope_theta": rope_theta,
        "rope_scaling": _rope_scaling(file, own, rope_theta, head_dim),
        # The table's own height: the metadata's vocab_size may leave padding rows out.
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }
    eos = eos_token_ids(metadata)
    config["eos_token_id"] = eos[0] if len(eos) == 1 else list(eos) or None
    if model_type == "mistral":
        config["sliding_window"] = window
    return config


def _short(value: float) -> float:
    """A float32 from the file as the shortest decimal that means it: 1e-5, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


def _rope_scaling(file: GGUFFile, own: Mapping[str, Any], theta: float, head_dim: int) -> dict[str, Any] | None:
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, theta, head_dim)
    kind = own.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise UsageError(f"{file.path}: rope scaling {kind!r} is not supported; supported: none, linear, yarn, llama3")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": _short(own["rope.scaling.factor"])}
    if original := own.get("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = int(original)
    return scaling


def _llama3_scaling(file: GGUFFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3.1 and later: the file holds a divisor for each frequency instead of the rule that made them.

    The rule's other numbers have been the same in every release (low 1, high 4, from 8192 positions), so only the
    factor is read from the table; the table that follows from them must then be the one in the file.
    """
    info = file.tensors["rope_freqs.weight"]
    if info.type != "F32":
        raise UsageError(f"{file.path}: rope_freqs.weight is stored as {info.type}, expected F32")
    divisors = file.bytes_of(info).cast("f").tolist()
    scaling = {
        "rope_type": "llama3",
        "factor": float(f"{max(divisors):.5g}"),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = llama3_divisors(scaling, theta, head_dim)
    same = len(expected) == len(divisors) and all(map(partial(math.isclose, rel_tol=1e-3), expected, divisors))
    if not same:
        raise UsageError(f"{file.path}: rope_freqs.weight does not follow the llama3 rule, factor {scaling['factor']}")
    return scaling


def llama3_divisors(scaling: Mapping[str, Any], theta: float, head_dim: int) -> list[float]:
    """What each of the ``head_dim / 2`` rotary frequencies is divided by: 1 for the fast ones, ``factor`` for the slow
    ones, a blend between. Source: Llama 3.1's rope scaling as in its reference code."""
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    context = scaling["original_max_position_embeddings"]
    divisors = []
    for index in range(head_dim // 2):
        turns = context / (2 * math.pi * theta ** (2 * index / head_dim))  # over the original context
        blend = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - blend) / factor + blend))
    return divisors
