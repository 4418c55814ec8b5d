"""Plain PyTorch: what each operation means."""

from kernels.reference.attention import paged_attention, write_kv
from kernels.reference.flash_attention import flash_attention, merge_states
from kernels.reference.int4_tiles import w4a16_linear
from kernels.reference.latent_attention import absorb, expanded_latent_attention, lift, paged_latent_attention
from kernels.reference.layers import rms_norm, rope_and_write, rotary_embedding, silu_mul
from kernels.reference.linear import embedding, linear
from kernels.reference.matmul import matmul
from kernels.reference.routing import route
from kernels.reference.sampling import sample
from kernels.reference.softmax import softmax

__all__ = [
    "absorb",
    "embedding",
    "flash_attention",
    "expanded_latent_attention",
    "lift",
    "linear",
    "matmul",
    "merge_states",
    "paged_attention",
    "paged_latent_attention",
    "rms_norm",
    "rope_and_write",
    "rotary_embedding",
    "route",
    "sample",
    "silu_mul",
    "softmax",
    "w4a16_linear",
    "write_kv",
]
