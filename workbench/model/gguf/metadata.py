"""A model's configuration as GGUF metadata: the way back from `workbench.model.gguf.hf_config`. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from workbench.errors import UsageError
from workbench.gguf_file import GGUFFile
from workbench.model.config import ModelConfig
from workbench.model.gguf.hf_config import config_of, llama3_divisors

ROPE_FREQS = "rope_freqs.weight"
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""``model_type`` -> GGUF architecture."""
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NOT_SAID = ("dtype", "architecture", "quant_method", "pad_token_id")


def architecture_of(config: ModelConfig) -> str:
    """Raises UsageError for a family that is not written."""
    if config.model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UsageError(f"model_type {config.model_type!r} is not written as GGUF; supported: {known}")
    return ARCHITECTURES[config.model_type]


def metadata_of(config: ModelConfig, name: str) -> dict[str, Any]:
    """What a file says of the model's shape. Whether that is all there is to say `require_said` knows."""
    arch = architecture_of(config)
    own: dict[str, Any] = {
        "block_count": config.num_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_theta),
        "rope.dimension_count": config.rotary_dim,
        "vocab_size": config.vocab_size,
    }
    if config.sliding_window is not None:
        own["attention.sliding_window"] = config.sliding_window
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind in ("linear", "yarn"):
        own |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": float(scaling.factor)}
        if scaling.original_max_position_embeddings:
            own["rope.scaling.original_context_length"] = int(scaling.original_max_position_embeddings)
    ids = dict(zip(_ENDS, config.eos_token_ids, strict=False))
    if config.bos_token_id is not None:
        ids["bos_token_id"] = config.bos_token_id
    return {
        "general.architecture": arch,
        "general.type": "model",
        "general.name": name,
        **{f"{arch}.{key}": value for key, value in own.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in ids.items()},
    }


def rope_divisors(config: ModelConfig) -> list[float] | None:
    """What `ROPE_FREQS` holds: of Llama 3's scaling, which has no metadata of its own."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "llama3":
        return None
    return llama3_divisors(asdict(scaling), config.rope_theta, config.head_dim)


def require_said(file: GGUFFile, config: ModelConfig) -> None:
    """Raises UsageError, with what is lost, if a file's head does not say all of a configuration."""
    found = asdict(ModelConfig.from_dict(config_of(file), str(file.path)))
    wanted = asdict(config)
    lost = [key for key, value in wanted.items() if key not in _NOT_SAID and not _same(value, found[key])]
    if lost:
        told = ", ".join(f"{key}={wanted[key]!r} would be read as {found[key]!r}" for key in lost)
        raise UsageError(f"a GGUF file cannot say all of this model's configuration: {told}; write another format")


def _same(one: Any, other: Any) -> bool:
    """Numbers are kept as float32."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, float) and isinstance(other, (int, float)):
        return abs(one - other) <= 1e-6 * abs(one)
    if isinstance(one, Sequence) and not isinstance(one, str):
        return list(one) == list(other)
    return bool(one == other)
