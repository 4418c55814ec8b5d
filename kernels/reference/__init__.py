"""Plain PyTorch: what each operation means."""

from kernels.reference.attention import paged_attention, write_kv
from kernels.reference.layers import rms_norm, rope_and_write, rotary_embedding, silu_mul
from kernels.reference.linear import embedding, linear
from kernels.reference.matmul import matmul
from kernels.reference.sampling import sample
from kernels.reference.softmax import softmax

__all__ = [
    "embedding",
    "linear",
    "matmul",
    "paged_attention",
    "rms_norm",
    "rope_and_write",
    "rotary_embedding",
    "sample",
    "silu_mul",
    "softmax",
    "write_kv",
]
