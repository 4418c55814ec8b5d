"""Launches of attention kernels described so that they can be compiled without a GPU (`kernels.triton.variants`).

Arguments have the same names in all rungs, so their types stand here once. Tile sizes come from the table that launches
use.
"""

from __future__ import annotations

from typing import Any

from kernels.triton.attention_call import padded_dim
from kernels.triton.flash_tiles import tiles
from kernels.triton.variants import Variant

ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4}


def attention_variant(
    name: str,
    kernel: Any,
    arch: int,
    head_dim: int,
    dtype: str = "bf16",
    *,
    group: int = 4,
    causal: bool = True,
    window: bool = False,
    cap: bool = False,
    sinks: bool = False,
    descriptors: bool = False,
    wants: tuple[str, ...] = (),
    **constexprs: Any,
) -> Variant:
    """One launch on a chip of compute capability ``arch / 10``; ``constexprs``: values that are this kernel's own."""
    padded = padded_dim(head_dim)
    chosen = tiles(arch, padded, ITEMSIZE[dtype], descriptors, window)
    tensor = f"tensordesc<{dtype}[1, {chosen.block_n}, {padded}]>" if descriptors else f"*{dtype}"
    types = {
        **dict.fromkeys(("q", "out"), f"*{dtype}"),
        **dict.fromkeys(("k", "v"), tensor),
        **dict.fromkeys(("lse", "sinks", "scores"), "*fp32"),
        **dict.fromkeys(("cu_q", "cu_k"), "*i32"),
        **dict.fromkeys(("batch", "num_rows", "num_heads", "max_k", "window"), "i32"),
        **dict.fromkeys(("to_log2", "slope", "cap"), "fp32"),
        **{f"stride_{x}{y}": "i32" for x in "qkvo" for y in "th"},
    }
    values = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "PADDED": padded,
        "BLOCK_M": chosen.block_m,
        "BLOCK_N": chosen.block_n,
        "CAUSAL": causal,
        "HAS_WINDOW": window,
        "HAS_CAP": cap,
        "HAS_SINKS": sinks,
        "DESCRIPTORS": descriptors,
        "PRECISION": "ieee" if dtype == "fp32" else "tf32",
        **({} if sinks else {"sinks": None}),
        **constexprs,
    }
    signature = {arg: types[arg] for arg in kernel.arg_names if arg in types and arg not in values}
    extras = [word for word, on in (("noncausal", not causal), ("window-cap-sinks", window or cap or sinks)) if on]
    words = [name, f"sm{arch}", f"d{head_dim}", dtype, "desc" if descriptors else "ptr", *extras]
    return Variant(
        name="-".join(words),
        kernel=kernel,
        signature=signature,
        constexprs={arg: values[arg] for arg in kernel.arg_names if arg in values},
        divisible_by_16=tuple(
            arg for arg, kind in signature.items() if kind[0] == "*" or arg == "max_k" or arg.startswith("stride_")
        ),
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
        archs=(f"sm_{arch}",),
        wants=wants,
    )
