"""What attention computes and moves between memory and chip, written down or as FlashAttention does it. No torch.

Written down, every score goes to memory (float32, as softmax wants them) and comes back, twice. FlashAttention writes
the result and one log-sum-exp a row. Bytes count once in a kernel, however often it asks for them: the second time they
come from the L2 cache, if they are few. How much a kernel asks of that cache is `asked`.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.checks import as_whole
from workbench.errors import UsageError
from workbench.measure.fusion import FLOAT32, Pass


@dataclass(frozen=True, slots=True)
class Attention:
    """``queries`` are the last of ``keys`` tokens of one sequence. ``size``: bytes of a number of q, k, v and out."""

    queries: int
    keys: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    size: int = 2
    causal: bool = True

    def __post_init__(self) -> None:
        for name in ("queries", "keys", "num_heads", "num_kv_heads", "head_dim", "size"):
            number = getattr(self, name)
            if as_whole(number) is None or number < 1:
                raise UsageError(f"{name}={number!r}: must be a whole number of at least 1")
        if self.num_heads % self.num_kv_heads:
            raise UsageError(f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if self.causal and self.queries > self.keys:
            raise UsageError(f"queries={self.queries} are the last of keys={self.keys}, so they cannot be more")

    @property
    def pairs(self) -> int:
        """Of a query and a key that it sees, in one head."""
        if not self.causal:
            return self.queries * self.keys
        return self.queries * (self.keys - self.queries) + self.queries * (self.queries + 1) // 2

    @property
    def flops(self) -> int:
        """Of both matrix products, for what is seen; softmax is left out."""
        return 4 * self.pairs * self.num_heads * self.head_dim

    @property
    def score_bytes(self) -> int:
        """What the scores take where they are written down, seen or not."""
        return self.queries * self.keys * self.num_heads * FLOAT32

    def naive(self) -> tuple[Pass, ...]:
        """Three kernels, as in `kernels.triton.naive_attention`. Softmax goes over a row three times and finds it in
        a cache the second and third time."""
        q, kv, lse = self._parts()
        return (
            Pass("scores", q + kv // 2, self.score_bytes),
            Pass("softmax", self.score_bytes, self.score_bytes + lse),
            Pass("product", self.score_bytes + kv // 2, q),
        )

    def flash(self) -> Pass:
        """One kernel: reads queries, keys and values, writes the result and the log-sum-exp."""
        q, kv, lse = self._parts()
        return Pass("flash", q + kv, q + lse)

    def naive_bytes(self) -> int:
        return sum(one.read + one.written for one in self.naive())

    def flash_bytes(self) -> int:
        one = self.flash()
        return one.read + one.written

    def asked(self, block_m: int) -> int:
        """Bytes of keys and values that all tiles of ``block_m`` packed rows ask for: each tile all that it sees."""
        group = self.num_heads // self.num_kv_heads
        tokens = 0
        for row in range(0, self.queries * group, block_m):
            last = min((row + block_m - 1) // group, self.queries - 1)
            tokens += self.keys - self.queries + last + 1 if self.causal else self.keys
        return tokens * self.num_kv_heads * 2 * self.head_dim * self.size

    def _parts(self) -> tuple[int, int, int]:
        """Bytes of q (or out), of k and v together, and of the log-sum-exp."""
        head = self.head_dim * self.size
        q = self.queries * self.num_heads * head
        return q, 2 * self.keys * self.num_kv_heads * head, self.queries * self.num_heads * FLOAT32
