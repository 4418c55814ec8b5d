"""Plain PyTorch: what each operation means."""

from kernels.reference.attention import paged_attention, write_kv
from kernels.reference.layers import rms_norm, rotary_embedding, silu_mul

__all__ = ["paged_attention", "rms_norm", "rotary_embedding", "silu_mul", "write_kv"]
