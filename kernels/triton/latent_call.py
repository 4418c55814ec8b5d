"""What attention over latents does on the host: check the tensors, choose tiles and plan, launch; and its variants."""

from __future__ import annotations

from typing import Any

import torch

from kernels.triton.attention_call import architecture, padded_dim, refusal_of_heads, score_values
from kernels.triton.attention_variants import ITEMSIZE
from kernels.triton.flash_tiles import DECODE_REGISTERS, LITTLE_SHARED_MEMORY, Tiles
from kernels.triton.launch import require, strange
from kernels.triton.paged_call import Call, Pages, check, plan_of, plan_values, refusal_of_tables
from kernels.triton.paged_plan import Plan
from kernels.triton.variants import Variant

MAX_RANK = 512
MAX_ROPE = 128


def latent_tiles(arch: int | None, padded: int, itemsize: int, rows: int) -> Tiles:
    """arch, padded, itemsize as in `flash_tiles.tiles`, padded of a latent; rows: of a request that decodes.

    With 16 rows, the least of a matrix instruction, memory is what takes the time: two programs an SM, within
    `DECODE_REGISTERS`. With more (DeepSeek-V2 and V3 have 128) the product counts too: 64 rows are what wgmma and
    tcgen05 want, one such program fills an SM, and chips before 90 hold 32. Of five stages two are blocks of latents
    (see `flash_tiles.paged`); where two programs take turns, one block each will do.
    """
    few = rows <= 16
    if arch is None:
        return Tiles(16 if few else 64, 64, 4, 1)
    if itemsize == 4:
        return Tiles(16, 16, 8, 1)
    if arch in LITTLE_SHARED_MEMORY:
        return Tiles(16, 16, 8, 5)
    if arch < 90:
        return Tiles(16, 32, 8, 2) if few else Tiles(32, 32, 8, 5)
    return Tiles(16 if few else 64, 32, 8, 5)


def parts(chosen: Tiles, rank: int) -> int:
    """The result of 64 rows and a latent of 512 takes half of all registers, and with the rest it spills: two programs
    have a half each. Both work out all scores, so the second reads the same keys once more, from the L2 cache."""
    return 2 if chosen.block_m == 64 and rank == 512 else 1


class Latents(Pages):
    """Heads that share one row a token; ``head_dim`` is a latent's, the rank."""

    def parts(self, chosen: Tiles) -> int:
        return parts(chosen, self.head_dim)

    def decode_tiles(self, rows: int) -> Tiles:
        return latent_tiles(architecture(self.device), padded_dim(self.head_dim), self.dtype.itemsize, rows)

    def prefill_tiles(self, windowed: bool) -> Tiles:
        return self.decode_tiles(64)


def refusal_of_widths(rank: int, rope: int) -> str:
    """Why attention over rows of such widths cannot run; empty if it can."""
    if not 1 <= rank <= MAX_RANK or not 1 <= rope <= MAX_ROPE:
        return f"a latent of {rank} and a rotated key of {rope}, and it takes 1 to {MAX_RANK} and 1 to {MAX_ROPE}"
    return ""


def refusal(q: torch.Tensor, cache: torch.Tensor, block_tables: torch.Tensor, rank: int) -> str:
    """Why these tensors cannot be taken; empty if they can. Values on the device (lengths, tables) are trusted."""
    if not (q.ndim == cache.ndim == 3 and cache.shape[2] == q.shape[2] and cache.shape[1] and q.shape[1]):
        return (
            f"q {list(q.shape)}, cache {list(cache.shape)}: q must be [num_tokens, num_heads, rank + rope], cache "
            "[num_blocks, block_size, rank + rope]"
        )
    reason = refusal_of_widths(rank, q.shape[2] - rank) or refusal_of_heads(1, q.dtype, q.device)
    if reason := reason or strange(q=q, cache=cache):
        return reason
    if cache.device != q.device:
        return f"the cache is on {cache.device} and q on {q.device}"
    return refusal_of_tables(block_tables, q.device)


def plan_for(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int] | torch.Tensor,
    seq_lens: list[int] | torch.Tensor,
    *,
    rank: int,
    split_size: int | None = None,
    num_sms: int | None = None,
) -> Plan:
    """As `paged_call.plan_for`."""
    require("paged_latent_attention", refusal(q, cache, block_tables, rank))
    latents = Latents(q.shape[1], 1, rank, q.dtype, q.device)
    longest = block_tables.shape[1] * cache.shape[1]
    return plan_of(latents, len(q), longest, query_start, seq_lens, None, split_size, num_sms)


def prepare(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    plan: Plan,
    rank: int,
    scale: float,
    lse: torch.Tensor | None,
) -> Call:
    """Raises ValueError for what the kernels do not take."""
    require("paged_latent_attention", refusal(q, cache, block_tables, rank))
    check(q, block_tables, plan, lse)
    latents = Latents(q.shape[1], 1, rank, q.dtype, q.device)
    out = q.new_empty(*q.shape[:2], rank)
    rope = q.shape[2] - rank
    values: dict[str, Any] = {
        **{"q": q, "cache": cache, "out": out, "lse": lse},
        **plan_values(plan, block_tables),
        **score_values(out, 1, scale, True, None, None, None),
        **{"stride_qt": q.stride(0), "stride_qh": q.stride(1), "stride_ot": out.stride(0), "stride_oh": out.stride(1)},
        **{"stride_page": cache.stride(0), "stride_kt": cache.stride(1), "PAGE": cache.shape[1]},
        **{"ROPE": rope, "PADDED_ROPE": padded_dim(rope), "HAS_LSE": lse is not None},
    }
    return Call(latents, plan, out, values)


def latent_variant(
    kernel: Any,
    arch: int,
    heads: int,
    *,
    decode: bool,
    rank: int = 512,
    rope: int = 64,
    dtype: str = "bf16",
    page: int = 16,
    wants: tuple[str, ...] = (),
) -> Variant:
    """One launch on a chip of compute capability ``arch / 10``: a split of a decode, or tiles of a chunk."""
    padded = padded_dim(rank)
    chosen = latent_tiles(arch, padded, ITEMSIZE[dtype], heads if decode else 64)
    sizes = ("batch", "width", "tiles_each", "num_splits", "split_size", "num_heads")
    strides = ("stride_qt", "stride_qh", "stride_page", "stride_kt", "stride_ot", "stride_oh", "stride_os")
    types = {
        **{"q": f"*{dtype}", "cache": f"*{dtype}", "out": "*fp32" if decode else f"*{dtype}", "lse": "*fp32"},
        **{"cu_q": "*i32", "seq_lens": "*i32", "tables": "*i64", "to_log2": "fp32"},
        **dict.fromkeys((*sizes, *strides, "stride_ls", "stride_table"), "i32"),
    }
    values: dict[str, Any] = {
        **{"GROUP": heads, "HEAD_DIM": rank, "PADDED": padded, "ROPE": rope, "PADDED_ROPE": padded_dim(rope)},
        **{"PARTS": parts(chosen, rank)},
        **{"BLOCK_M": chosen.block_m, "BLOCK_N": chosen.block_n, "PAGE": page},
        **{"HAS_LSE": decode, "DECODE": decode, "PARTIAL": decode},
        "PRECISION": "ieee" if dtype == "fp32" else "tf32",
        # Triton makes a constant of an integer that is 1
        **({"width": 1} if decode else {"lse": None}),
    }
    if not decode or heads <= chosen.block_m:
        values["tiles_each"] = 1
    signature = {name: types[name] for name in kernel.arg_names if name in types and name not in values}
    words = ["decode" if decode else "chunk", f"sm{arch}", f"d{rank}", dtype, f"page{page}", f"{heads}heads"]
    return Variant(
        name="-".join(words),
        kernel=kernel,
        signature=signature,
        constexprs=values,
        divisible_by_16=tuple(x for x, kind in signature.items() if kind[0] == "*" or x in strides),
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
        archs=(f"sm_{arch}",),
        wants=wants,
        most_registers=DECODE_REGISTERS if chosen.block_m == 16 else None,
    )


def latent_variants(kernel: Any) -> list[Variant]:
    """DeepSeek-V2-Lite (16 heads), V2 and V3 (128) on every chip; once each odd pages, chunks of V2-Lite, MiniCPM3
    (40 heads, latents of 256) and float32."""
    found = []
    for arch in (80, 90, 100):
        unit = {80: "mma", 90: "wgmma", 100: "tcgen05"}[arch]
        loads = ("cp.async", "ldg.128")
        found.append(latent_variant(kernel, arch, 16, decode=True, wants=("mma", *loads)))
        found.append(latent_variant(kernel, arch, 128, decode=True, wants=(unit, *loads)))
        found.append(latent_variant(kernel, arch, 128, decode=False, wants=(unit, *loads)))
    found.append(latent_variant(kernel, 90, 128, decode=True, page=17, wants=("wgmma",)))
    found.append(latent_variant(kernel, 90, 16, decode=False, wants=("wgmma",)))
    found.append(latent_variant(kernel, 90, 40, decode=True, rank=256, rope=32, wants=("wgmma",)))
    found.append(latent_variant(kernel, 90, 16, decode=True, dtype="fp32"))
    return found
