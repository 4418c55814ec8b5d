"""Launches of paged attention described so that they can be compiled without a GPU (`kernels.triton.variants`)."""

from __future__ import annotations

from typing import Any

from kernels.triton.attention_call import padded_dim
from kernels.triton.attention_variants import ITEMSIZE
from kernels.triton.flash_tiles import DECODE_REGISTERS, decode_tiles, paged, tiles
from kernels.triton.paged_plan import decode_limit
from kernels.triton.variants import Variant

BATCH_SIZES = ("batch", "width", "tiles_each", "num_splits", "split_size", "num_heads", "window")


def paged_variant(
    kernel: Any,
    arch: int,
    head_dim: int,
    *,
    decode: bool,
    dtype: str = "bf16",
    group: int = 4,
    page: int = 16,
    rows: int | None = None,
    everything: bool = False,
    wants: tuple[str, ...] = (),
) -> Variant:
    """One launch on a chip of compute capability ``arch / 10``: a split of a decode that goes to a workspace, or a
    prefill. ``rows``: of a request and KV head, where more decode than usual. ``everything``: window, softcap, sinks.
    """
    padded = padded_dim(head_dim)
    if decode:
        chosen = decode_tiles(arch, padded, ITEMSIZE[dtype], rows or decode_limit(group) * group)
    else:
        chosen = paged(tiles(arch, padded, ITEMSIZE[dtype], descriptors=False, windowed=everything))
    strides = ["stride_qt", "stride_qh", "stride_page", "stride_kt", "stride_kh", "stride_ot", "stride_oh"]
    types = {
        **dict.fromkeys(("q", "k", "v"), f"*{dtype}"),
        "out": "*fp32" if decode else f"*{dtype}",
        **dict.fromkeys(("lse", "sinks"), "*fp32"),
        **{"cu_q": "*i32", "seq_lens": "*i32", "tables": "*i64"},
        **dict.fromkeys((*BATCH_SIZES, *strides, "stride_os", "stride_ls", "stride_table"), "i32"),
        **dict.fromkeys(("to_log2", "slope", "cap"), "fp32"),
    }
    values: dict[str, Any] = {
        **{"GROUP": group, "HEAD_DIM": head_dim, "PADDED": padded, "PAGE": page},
        **{"BLOCK_M": chosen.block_m, "BLOCK_N": chosen.block_n},
        **{"CAUSAL": True, "HAS_WINDOW": everything, "HAS_CAP": everything, "HAS_SINKS": everything},
        **{"HAS_LSE": decode, "DECODE": decode, "PARTIAL": decode},
        "PRECISION": "ieee" if dtype == "fp32" else "tf32",
    }
    if decode and rows is None:
        values |= {"width": 1, "tiles_each": 1}  # Triton makes a constant of an integer that is 1
    if not everything:
        values["sinks"] = None
    if not decode:
        values |= {"lse": None, "tiles_each": 1}
    signature = {name: types[name] for name in kernel.arg_names if name in types and name not in values}
    words = ["decode" if decode else "prefill", f"sm{arch}", f"d{head_dim}", dtype, f"page{page}", f"group{group}"]
    words += [f"{rows}rows"] if rows else []
    words += ["window-cap-sinks"] if everything else []
    return Variant(
        name="-".join(words),
        kernel=kernel,
        signature=signature,
        constexprs=values,
        divisible_by_16=tuple(x for x, kind in signature.items() if kind[0] == "*" or x in (*strides, "stride_os")),
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
        archs=(f"sm_{arch}",),
        wants=wants,
        most_registers=DECODE_REGISTERS if decode else None,
    )


def paged_variants(kernel: Any) -> list[Variant]:
    """What an engine runs on every chip, of the rest the heaviest; odd pages, float32 and shared heads once each."""
    found = []
    for arch in (80, 90, 100):
        unit = {80: "mma", 90: "wgmma", 100: "tcgen05"}[arch]

        def add(head_dim: int, arch: int = arch, **options: Any) -> None:
            found.append(paged_variant(kernel, arch, head_dim, **options))

        for decode, matrix in ((True, "mma"), (False, unit)):
            usual: dict[str, Any] = {"decode": decode, "wants": (matrix, "cp.async", "ldg.128")}
            add(128, **usual)
            add(128, **usual, everything=True)
            add(256, **usual, everything=True)
        add(128, decode=True, rows=64, wants=(unit, "cp.async", "ldg.128"))
        add(128, decode=True, dtype="fp32")
        if arch == 90:
            add(80, decode=True, group=3, page=17, everything=True, wants=("mma",))
            add(128, decode=False, dtype="fp32")
    return found
