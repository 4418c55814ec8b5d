"""What fusion saves: the bytes that operations move between memory and processor, apart and fused. No torch.

Each kernel reads its inputs from memory once and writes its results once; what one kernel hands to the next goes
through memory, what stays inside one does not. So fusing saves the round trips of everything in between, and no
arithmetic. What small inputs find in a cache is left out: this is for tensors larger than it. Sizes are bytes of a
number.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.checks import as_whole
from workbench.errors import UsageError

FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Pass:
    """One kernel: bytes it reads from memory and writes to it."""

    name: str
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class Fusion:
    """One operation as kernels of its own for each step, and as it is fused."""

    name: str
    apart: tuple[Pass, ...]
    fused: tuple[Pass, ...]

    @property
    def apart_bytes(self) -> int:
        return _moved(self.apart)

    @property
    def fused_bytes(self) -> int:
        return _moved(self.fused)

    @property
    def ratio(self) -> float:
        """How many times faster it becomes, if memory is all that counts."""
        return self.apart_bytes / self.fused_bytes


def rms_norm(tokens: int, width: int, size: int = 2) -> Fusion:
    """The residual's addition and the norm after it; apart as a model written in tensor operations does it."""
    _check(tokens=tokens, width=width, size=size)
    n, row, column = tokens * width * size, width * size, tokens * size
    apart = (
        Pass("stream + x", 2 * n, n),
        Pass("square", n, n),
        Pass("mean", n, column),
        Pass("stream · scale", n + column, n),
        Pass("· weight", n + row, n),
    )
    return Fusion("RMSNorm with residual", apart, (Pass("all", 2 * n + row, 2 * n),))


def silu_mul(tokens: int, width: int, size: int = 2) -> Fusion:
    """``width``: of each half."""
    _check(tokens=tokens, width=width, size=size)
    n = tokens * width * size
    return Fusion("SiLU · mul", (Pass("silu", n, n), Pass("mul", 2 * n, n)), (Pass("all", 2 * n, n),))


def rope_and_write(
    tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, size: int = 2, norms: bool = False
) -> Fusion:
    """What stands between projection and attention. The cache's numbers are of the same size."""
    _check(tokens=tokens, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, size=size)
    head = tokens * head_dim * size
    queries, keys, kv = num_heads * head, num_kv_heads * head, 2 * num_kv_heads * head
    weight = head_dim * size
    # A position, the cosines and sines of its pairs in float32, a slot: for each token.
    places, slots = tokens * (8 + head_dim * FLOAT32), tokens * 8
    apart = [
        Pass("rotate queries and keys", queries + keys + places, queries + keys),
        Pass("write the cache", kv + slots, kv),
    ]
    if norms:
        apart = [Pass("norm queries", queries + weight, queries), Pass("norm keys", keys + weight, keys), *apart]
    read = queries + kv + places + slots + (2 * weight if norms else 0)
    return Fusion("RoPE and cache write", tuple(apart), (Pass("all", read, queries + keys + kv),))


def softmax(rows: int, columns: int, size: int = 2) -> dict[str, tuple[Pass, ...]]:
    """The rungs of `kernels.triton.softmax`; what lies between kernels is float32."""
    _check(rows=rows, columns=columns, size=size)
    n, wide, column = rows * columns * size, rows * columns * FLOAT32, rows * FLOAT32
    naive = (
        Pass("largest", n, column),
        Pass("numerators", n + column, wide + column),
        Pass("quotients", wide + column, n),
    )
    # The second reading of a row comes from memory where rows are longer than what caches keep for a program.
    return {"naive": naive, "fused": (Pass("all", n, n),), "online": (Pass("all", 2 * n, n),)}


def matmul(m: int, n: int, k: int, size: int = 2) -> Fusion:
    """A product with bias and activation as its epilogue."""
    _check(m=m, n=n, k=k, size=size)
    factors, product, bias = (m * k + k * n) * size, m * n * size, n * size
    apart = (
        Pass("product", factors, product),
        Pass("+ bias", product + bias, product),
        Pass("activation", product, product),
    )
    return Fusion("product with epilogue", apart, (Pass("all", factors + bias, product),))


def _moved(passes: tuple[Pass, ...]) -> int:
    return sum(one.read + one.written for one in passes)


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if as_whole(number) is None or number < 1:
            raise UsageError(f"{name}={number!r}: must be a whole number of at least 1")
