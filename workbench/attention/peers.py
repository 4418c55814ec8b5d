"""What other engines take by themselves, as data, and vLLM's names for what there is here.

Read in their sources: vLLM 0.33, ``vllm/platforms/cuda.py`` and ``cpu.py``; SGLang 0.5.23, ``server_args.py`` and what
it calls. What serves one kind of model or cache only (attention sinks, sparse latents) is left out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """The first choice first; the next where one is missing or cannot serve. Nothing: it computes no such attention."""

    system: str
    version: str
    source: str
    attention: dict[str, tuple[str, ...]]
    """By the names of `workbench.attention.table.ORDERS`: multi-, grouped- and multi-query heads."""
    latent: dict[str, tuple[str, ...]]
    """Multi-head latent attention."""


_SGLANG = ("flashinfer", "triton")
_VLLM = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
PEERS = (
    Peer(
        "SGLang",
        "0.5.23",
        "its server_args.py; trtllm_mla for DeepSeek-V3 and its like",
        {
            "CPU": ("intel_amx", "torch_native"),
            "Hopper": ("fa3",),
            "Blackwell": ("trtllm_mha",),
            "consumer Blackwell": _SGLANG,
            "Ada": _SGLANG,
            "Ampere": _SGLANG,
            "an older GPU": _SGLANG,
        },
        {
            "CPU": ("intel_amx", "torch_native"),
            "Hopper": ("fa3",),
            "Blackwell": ("trtllm_mla", "flashinfer"),
            "consumer Blackwell": ("triton",),
            "Ada": ("triton",),
            "Ampere": ("triton",),
            "an older GPU": ("triton",),
        },
    ),
    Peer(
        "vLLM",
        "0.33",
        "its platforms/cuda.py and cpu.py; FLASH_ATTN is FlashAttention-3 on Hopper, -4 on Blackwell",
        {
            "CPU": ("CPU_ATTN",),
            "Hopper": _VLLM,
            "Blackwell": ("FLASHINFER", "FLASH_ATTN", *_VLLM[2:]),
            "consumer Blackwell": _VLLM,
            "Ada": _VLLM,
            "Ampere": _VLLM,
            "an older GPU": _VLLM[1:],  # FLASH_ATTN asks for 8.0
        },
        {
            "CPU": (),
            "Hopper": ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA"),
            "Blackwell": ("FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA"),
            "consumer Blackwell": ("TRITON_MLA",),
            "Ada": ("TRITON_MLA",),
            "Ampere": ("TRITON_MLA",),
            "an older GPU": ("TRITON_MLA",),
        },
    ),
)
VLLM_NAMES = {
    "FLASH_ATTN": "fa3 on Hopper, flash_attn on Ampere and Ada",
    "FLASHINFER": "flashinfer",
    "TRITON_ATTN": "triton",
    "XFORMERS": "xformers",
    "FLEX_ATTENTION": "flex",
    "TORCH_SDPA": "sdpa",
    "CPU_ATTN": "cpu",
    "FLASHMLA": "flashmla",
    "FLASH_ATTN_MLA": "flashmla",
    "FLASHINFER_MLA": "triton",
    "CUTLASS_MLA": "triton",
    "TOKENSPEED_MLA": "triton",
    "TRITON_MLA": "triton",
}
"""What comes closest here to vLLM's backends; older releases wrote ``_VLLM_V1`` behind some of them."""
