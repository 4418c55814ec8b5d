"""Stand-ins for the libraries that adapters call: each checks its arguments as the documentation has them, and computes
request by request with torch. They share nothing with the adapters."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch


def put(patch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    """A module of that name, importable until the test is over."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__path__ = []  # a package, so that others may lie in it
    for key, value in members.items():
        setattr(module, key, value)
    patch.setitem(sys.modules, name, module)
    return module


def attend_one(q: Any, k: Any, v: Any, scale: float, left: int, right: int) -> torch.Tensor:
    """q ``[m, heads, d]`` aligned with the last of k ``[n, kv_heads, d]``; a query sees ``left`` keys before its own
    and ``right`` behind it, −1: all."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    own = torch.arange(len(q))[:, None] + len(k) - len(q)
    place = torch.arange(len(k))[None]
    hidden = torch.zeros(len(q), len(k), dtype=torch.bool)
    if left >= 0:
        hidden |= place < own - left
    if right >= 0:
        hidden |= place > own + right
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * scale
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v.double()).to(q.dtype)


def paged(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    return cache[table.long()].flatten(0, 1)[:length]


def is_int32(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        assert tensor.dtype == torch.int32 and tensor.stride(-1) == 1, tensor.dtype


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    is_int32(cu_seqlens_q, cu_seqlens_k, block_table)
    assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    assert k.stride(-1) == v.stride(-1) == 1 and k.shape == v.shape and len(block_table) == len(cu_seqlens_q) - 1
    assert causal and dropout_p == 0.0
    left, right = window_size[0], 0
    out = torch.empty_like(q)
    assert max_seqlen_q == cu_seqlens_q.diff().max() and max_seqlen_k == cu_seqlens_k.diff().max()
    for b, table in enumerate(block_table):
        rows = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        length = int(cu_seqlens_k[b + 1] - cu_seqlens_k[b])
        keys, values = paged(k, table, length), paged(v, table, length)
        out[rows] = attend_one(q[rows], keys, values, softmax_scale, left, right)
    return out


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
    cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
    max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
    causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
    scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False,
):  # fmt: skip
    is_int32(cache_seqlens, page_table, cu_seqlens_q)
    assert k is v is None and causal and max_seqlen_q == cu_seqlens_q.diff().max()
    assert k_cache.stride(-1) == v_cache.stride(-1) == 1 and k_cache.ndim == 4
    out = torch.empty_like(q)
    for b, length in enumerate(cache_seqlens.tolist()):
        rows = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        keys, values = (paged(cache, page_table[b], length) for cache in (k_cache, v_cache))
        out[rows] = attend_one(q[rows], keys, values, softmax_scale, window_size[0], 0)
    return out


class BatchPrefillWithPagedKVCacheWrapper:
    plans = 0

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD", **more: Any) -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD" and not more

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
        pos_encoding_mode="NONE", use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
        rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None, non_blocking=True,
    ) -> None:  # fmt: skip
        is_int32(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert causal and len(qo_indptr) == len(paged_kv_indptr) == len(paged_kv_last_page_len) + 1
        assert len(paged_kv_indices) == paged_kv_indptr[-1]
        type(self).plans += 1
        self.pages = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self.shape = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self.scale, self.left, self.types = sm_scale, window_left, (q_data_type, kv_data_type)

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        keys, values = paged_kv_cache
        assert keys.stride() == values.stride() and keys.stride(-1) == 1
        assert self.shape == (*q.shape[1:2], *keys.shape[2:4], keys.shape[1]) and self.types == (q.dtype, keys.dtype)
        starts, indptr, indices, last = self.pages
        out = torch.empty_like(q)
        for b in range(len(last)):
            rows, pages = slice(starts[b], starts[b + 1]), indices[indptr[b] : indptr[b + 1]]
            length = (len(pages) - 1) * self.shape[3] + int(last[b])
            own = (paged(cache, pages, length) for cache in (keys, values))
            out[rows] = attend_one(q[rows], *own, self.scale, self.left, 0)
        return out


@dataclass
class BlockDiagonalCausalFromBottomRightMask:
    q_seqlen: list[int]
    kv_seqlen: list[int]
    window: int | None = None

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen=None, *, device=None):
        assert all(k >= q for q, k in zip(q_seqlen, kv_seqlen, strict=True))
        return cls(list(q_seqlen), list(kv_seqlen))

    def make_local_attention_from_bottomright(self, window_size: int):
        return type(self)(self.q_seqlen, self.kv_seqlen, window_size)


def memory_efficient_attention_forward(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
    assert query.ndim == key.ndim == value.ndim == 5 and len(query) == len(key) == 1
    assert query.shape[2:] == key.shape[2:] == value.shape[2:]
    q, k, v = (x[0].flatten(1, 2) for x in (query, key, value))
    assert len(q) == sum(attn_bias.q_seqlen) and len(k) == sum(attn_bias.kv_seqlen)
    left = -1 if attn_bias.window is None else attn_bias.window - 1
    pieces = zip(q.split(attn_bias.q_seqlen), k.split(attn_bias.kv_seqlen), v.split(attn_bias.kv_seqlen), strict=True)
    return torch.cat([attend_one(*piece, scale, left, 0) for piece in pieces]).reshape(query.shape)


class SchedMeta:
    """Holds for the calls of one step: the same lengths and shapes."""

    met: tuple | None = None


def flash_mla_with_kvcache(
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None, softmax_scale=None,
    causal=False, is_fp8_kvcache=False, indices=None,
):  # fmt: skip
    is_int32(block_table, cache_seqlens)
    assert q.ndim == k_cache.ndim == 4 and k_cache.shape[2] == 1 and num_splits is None
    assert k_cache.shape[1] == 64 and (q.shape[3], head_dim_v) == (576, 512) and causal
    met = (*q.shape, *cache_seqlens.tolist())
    assert tile_scheduler_metadata.met in (None, met), "a schedule serves one set of requests"
    tile_scheduler_metadata.met = met
    out = q.new_empty(*q.shape[:3], head_dim_v)
    for b, length in enumerate(cache_seqlens.tolist()):
        rows = paged(k_cache, block_table[b], length)
        out[b] = attend_one(q[b], rows, rows[..., :head_dim_v], softmax_scale, -1, 0)
    return out, None


def _kept(probs: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    left = probs.masked_fill(~kept, 0.0)
    return left / left.sum(-1, keepdim=True)


def top_k_renorm_probs(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    assert probs.dtype == torch.float32 and top_k.dtype == torch.int32 and top_k.shape == probs.shape[:1]
    assert (top_k > 0).all() and (top_k <= probs.shape[-1]).all()
    least = probs.sort(-1, descending=True)[0].gather(-1, (top_k.long() - 1)[:, None])
    return _kept(probs, probs >= least)


def top_p_renorm_probs(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    assert probs.dtype == top_p.dtype == torch.float32 and top_p.shape == probs.shape[:1]
    ordered = probs.sort(-1, descending=True)[0]
    count = ((ordered.cumsum(-1) - ordered) < top_p[:, None]).sum(-1, keepdim=True)
    return _kept(probs, probs >= ordered.gather(-1, count - 1))


def install(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Puts the stand-ins of some backends, by their names, where ``import`` finds them."""
    if "flash_attn" in names:
        put(patch, "flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)
    if "fa3" in names:
        put(patch, "flash_attn_interface", flash_attn_with_kvcache=flash_attn_with_kvcache)
    if "flashinfer" in names:
        filters = {"top_k_renorm_probs": top_k_renorm_probs, "top_p_renorm_probs": top_p_renorm_probs}
        put(patch, "flashinfer", BatchPrefillWithPagedKVCacheWrapper=BatchPrefillWithPagedKVCacheWrapper)
        put(patch, "flashinfer.sampling", **filters)
    if "xformers" in names:
        put(patch, "xformers")
        put(patch, "xformers.ops", memory_efficient_attention_forward=memory_efficient_attention_forward)
        put(patch, "xformers.ops.fmha")
        mask = {"BlockDiagonalCausalFromBottomRightMask": BlockDiagonalCausalFromBottomRightMask}
        put(patch, "xformers.ops.fmha.attn_bias", **mask)
    if "flashmla" in names:
        metadata = lambda *args, **more: (SchedMeta(), None)
        put(patch, "flash_mla", flash_mla_with_kvcache=flash_mla_with_kvcache, get_mla_metadata=metadata)
