"""The KV cache as tensors, one a layer, reached by block id. Who holds which block is the affair of `workbench.kv`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.model.config import ModelConfig


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

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, in all layers: pairs of (from, to). No block may be both."""
        if copies:
            sources, targets = torch.tensor(copies, device=self.storage.device).T
            self.storage[:, targets] = self.storage[:, sources]
