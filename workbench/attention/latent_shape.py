"""The widths of multi-head latent attention, and which of its two ways costs less. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434): keys and values rebuilt from one small latent.

    Two ways give the same numbers. *Expanded*: every cached latent is multiplied out to keys and values of all heads,
    then attention is as always. *Absorbed*: the query is multiplied with the matrix that would have built its keys, so
    scores and the weighted sum are taken over the latents themselves, and the values' matrix comes last.
    """

    kv_lora_rank: int
    """Width of the latent that is cached in place of keys and values."""
    qk_rope_head_dim: int
    """Width of the one rotated key that all heads share; cached beside the latent."""
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    """Width of the query's own bottleneck; None where queries are projected directly."""
    interleaved: bool = True
    """Whether neighbouring channels are turned together, not those half a head apart."""

    @property
    def cached_width(self) -> int:
        """Numbers that one token has in one layer's cache."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def query_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def head_flops(self, start: int, num_tokens: int) -> tuple[int, int]:
        """FLOPs of one head of one layer for the tokens ``start … start + num_tokens``: (absorbed, expanded).

        2 for each number of a score and of a weighted sum. Expanding rebuilds the keys and values of the ``start``
        earlier tokens; what the new tokens themselves meet of that matrix is the same both ways, so it is left out.
        """
        seen = num_tokens * start + num_tokens * (num_tokens + 1) // 2
        rebuilt = start * self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
        absorbed = 2 * seen * (self.cached_width + self.kv_lora_rank)
        return absorbed, 2 * (seen * (self.query_dim + self.v_head_dim) + rebuilt)

    def expands(self, start: int, num_tokens: int) -> bool:
        """Whether to compute these tokens expanded: it takes fewer FLOPs. DeepSeek-V2's widths and a long context: from
        171 tokens on."""
        absorbed, expanded = self.head_flops(start, num_tokens)
        return expanded < absorbed
