"""The KV cache as tensors, one a layer, reached by block id. Who holds which block is the affair of `workbench.kv`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.errors import UsageError, WorkbenchError
from workbench.model.config import ModelConfig
from workbench.plan import PoolView


class KVCache:
    """``layers[i]``: ``[num_blocks, block_size, 2, num_kv_heads, head_dim]``, keys at index 0, values at 1."""

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.num_layers, num_blocks, block_size, 2, config.num_kv_heads, config.head_dim)
        # Zeroed memory is handed out page by page on first use, so a large pool costs nothing until it is written.
        self.storage = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = list(self.storage.unbind(0))
        self.block_size = block_size
        self.token_bytes = 2 * config.num_kv_heads * config.head_dim * dtype.itemsize
        """Bytes of one token's keys and values in one layer."""
        self._pool: PoolView | None = None

    @property
    def num_blocks(self) -> int:
        return self.storage.shape[1]

    def lend_to(self, pool: PoolView | None, continues: bool) -> None:
        """Called before each step: the blocks of ``pool`` are the ones that lie here from now on.

        Several engines may use one cache, one after the other. A step that needs nothing from earlier steps takes it
        over; one that ``continues`` earlier steps would read what another engine has written since.

        Raises WorkbenchError when ``pool`` has lost the cache, UsageError when its blocks are not those of this cache.
        """
        if pool is None or pool is self._pool:
            return
        if pool.block_size != self.block_size or pool.num_blocks > self.num_blocks:
            raise UsageError(
                f"an engine of {pool.num_blocks} KV blocks × {pool.block_size} tokens does not fit this model's "
                f"cache of {self.num_blocks} × {self.block_size}: keep block_size and lower num_kv_blocks, or open "
                "another LLM"
            )
        if continues:
            raise WorkbenchError(
                "another engine has taken over this model's KV cache, so the keys and values of this engine's requests "
                "are gone: finish or abort one engine's requests before the next begins, or open another LLM"
            )
        self._pool = pool

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, in all layers: pairs of (from, to). No block may be both."""
        if copies:
            sources, targets = torch.tensor(copies, device=self.storage.device).T
            self.storage[:, targets] = self.storage[:, sources]
