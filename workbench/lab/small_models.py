"""Models with a known family's attention in a small shape, weights at random: their steps can be measured anywhere."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.lab.families import family_config
from workbench.model.config import ModelConfig

if TYPE_CHECKING:
    from workbench.lab.lesson import Lesson
    from workbench.llm import LLM

SHAPE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 512,
}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 128,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "q_lora_rank": None,
}
"""With latent attention, beside `SHAPE`."""
MEMORY_BYTES = 72 << 20
_folders: list[tempfile.TemporaryDirectory[str]] = []


def scratch_folder() -> Path:
    """A new, empty folder that goes when Python ends."""
    _folders.append(tempfile.TemporaryDirectory(prefix="workbench-"))
    return Path(_folders[-1].name)


def small_config(base: str, **changes: Any) -> dict[str, Any]:
    """The ``config.json`` of a family (`family_config`) in the small shape, dense, with these keys changed."""
    raw = family_config(base)
    shape = SHAPE | (LATENT if ModelConfig.from_dict(raw, base).latent else {})
    return {key: value for key, value in raw.items() if not _of_experts(key)} | shape | changes


def small_llm(lesson: Lesson, base: str, memory_bytes: int = MEMORY_BYTES, block_size: int = 16, **changes: Any) -> LLM:
    """An LLM on `small_config` with dummy weights; ``memory_bytes``: of its pool of keys and values."""
    folder = scratch_folder()
    (folder / "config.json").write_text(json.dumps(small_config(base, **changes)), encoding="utf-8")
    return lesson.llm(
        model=str(folder),
        load_format="dummy",
        quantization="none",
        kv_cache_memory_bytes=memory_bytes,
        block_size=block_size,
        max_num_seqs=64,
        max_model_len=2048,
    )


def _of_experts(key: str) -> bool:
    return "expert" in key or "group" in key
