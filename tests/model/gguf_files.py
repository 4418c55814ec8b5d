"""Writes a transformers model into a GGUF file with the public `gguf` package, as llama.cpp's converter lays it out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    for ours, theirs in {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}.items():
        name = name.replace(ours, theirs)
    if not name.startswith("model.layers."):
        return name
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{LAYER_NAMES[stem]}.{kind}"


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row by row: the halves of each head take turns, 0, half, 1, half + 1, …"""
    head_dim = rows.shape[0] // heads
    order = [h * head_dim + i + half for h in range(heads) for i in range(head_dim // 2) for half in (0, head_dim // 2)]
    return rows[order]


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    arch: str,
    kind: str | Callable[[str], str] = "F32",
    rope_freqs: torch.Tensor | None = None,
):
    """``kind``: the storage type of all matrices, or a function from a tensor's GGUF name to it."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(2)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs.numpy().astype(np.float32))
    heads = {"attn_q.": config.num_attention_heads, "attn_k.": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rows, target = tensor.float().numpy(), gguf_name(name)
        for part, count in heads.items():
            if arch == "llama" and part in target:
                rows = interleave(rows, count)
        packed = "F32" if rows.ndim != 2 else kind if isinstance(kind, str) else kind(target)
        data = gguf.quantize(np.ascontiguousarray(rows), gguf.GGMLQuantizationType[packed])
        writer.add_tensor(target, data, raw_dtype=gguf.GGMLQuantizationType[packed])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
