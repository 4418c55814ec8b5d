"""GGUF tensors under Hugging Face names and in Hugging Face row order.

llama.cpp rotates neighbouring pairs of a head's rows (0,1), (2,3), …; transformers rotates row i with row i + half.
Its converter therefore interleaves the two halves of every query and key head in files of architecture ``llama``; here
that is undone. Qwen files keep the halves. Sources: llama.cpp's ``conversion/llama.py``, the `gguf` package's names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.errors import UsageError
from workbench.gguf_file import GGUFFile, TensorInfo
from workbench.model.gguf.hf_config import config_of, read_config
from workbench.model.threads import one_thread

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.reference.weights import Weight

__all__ = [
    "INTERLEAVED", "gguf_name", "hf_name", "iter_tensors", "permute", "read_config", "read_packed", "read_tensor",
    "unpermute",
]  # fmt: skip

_GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GLOBAL_BACK = {theirs: ours for ours, theirs in _GLOBAL.items()}
_IN_LAYER_BACK = {theirs: ours for ours, theirs in _IN_LAYER.items()}
INTERLEAVED = ("llama", "mistral")
"""Architectures whose query and key rows are."""
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Not a weight: the config holds what it says.
_IN_CONFIG = ("rope_freqs.weight",)


def hf_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``. Raises UsageError for an unknown name."""
    if (match := _LAYER.fullmatch(name)) and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}.{match[3]}"
    stem, _, kind = name.rpartition(".")
    if stem in _GLOBAL and kind == "weight":
        return f"{_GLOBAL[stem]}.{kind}"
    raise UsageError(f"GGUF tensor {name!r} has no place in this decoder family")


def gguf_name(name: str) -> str:
    """The way back from `hf_name`. Raises UsageError for a name that GGUF has none for."""
    stem, _, kind = name.rpartition(".")
    if kind in ("weight", "bias"):
        if stem in _GLOBAL_BACK:
            return f"{_GLOBAL_BACK[stem]}.{kind}"
        parts = stem.split(".", 3)
        if parts[:2] == ["model", "layers"] and parts[-1] in _IN_LAYER_BACK:
            return f"blk.{parts[2]}.{_IN_LAYER_BACK[parts[-1]]}.{kind}"
    raise UsageError(f"tensor {name!r} has no name in GGUF files of this decoder family")


def unpermute(rows: Tensor, num_heads: int) -> Tensor:
    """Undoes the interleaving of every head's two halves: rows [num_heads · head_dim, …] in, the same shape out.

    A permutation of whole rows, so it may be applied to packed bytes as well.
    """
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def permute(rows: Tensor, num_heads: int) -> Tensor:
    """Interleaves every head's two halves, as files of architecture ``llama`` hold query and key rows."""
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def read_tensor(file: GGUFFile, info: TensorInfo) -> Tensor:
    """One tensor as the file has it (GGUF row order), dequantized to float32."""
    import torch

    from workbench.model.gguf.codecs import dequantize

    block = info.block  # refuses an unsupported type by the tensor's name, before anything is read
    raw = torch.frombuffer(file.bytes_of(info), dtype=torch.uint8)
    return dequantize(raw, block.name, info.shape)


def read_packed(file: GGUFFile, info: TensorInfo) -> Weight | None:
    """A matrix in its own blocks, if kernels compute with them; float16 and bfloat16 matrices as they are.

    Other storage types that are not float32 become float16, which keeps more digits than they have.
    """
    import torch

    from kernels.reference.weights import GGUF_BYTES, float_weight, gguf_weight

    kind = info.block.name.lower()
    if len(info.shape) != 2:
        return None
    if kind in GGUF_BYTES:
        raw = torch.frombuffer(file.bytes_of(info), dtype=torch.uint8)
        return gguf_weight(raw, kind, (info.shape[0], info.shape[1]))
    kept = {"f32": torch.float32, "bf16": torch.bfloat16}.get(kind, torch.float16)
    return float_weight(read_tensor(file, info).to(kept))


def iter_tensors(path: str | Path, packed: bool = False) -> Iterator[tuple[str, Tensor | Weight]]:
    """Every weight of the file, one at a time: (Hugging Face name, float32 tensor of the Hugging Face shape).

    ``packed``: matrices come as `read_packed` has them. A tied head is not repeated. Raises as `read_config` does, and
    UsageError for a tensor of an unknown name or of an unsupported storage type.
    """
    file = GGUFFile(path)
    config = config_of(file)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    interleaved = file.metadata["general.architecture"] in INTERLEAVED
    for info in file.tensors.values():
        if info.name in _IN_CONFIG:
            continue
        name, part = hf_name(info.name), info.name.split(".")[-2]
        turned = interleaved and part in heads
        with one_thread():
            weight = read_packed(file, info) if packed else None
            if weight is not None:
                yield name, replace(weight, data=unpermute(weight.data, heads[part])) if turned else weight
                continue
            tensor = read_tensor(file, info)
            tensor = unpermute(tensor, heads[part]) if turned else tensor
        yield name, tensor
