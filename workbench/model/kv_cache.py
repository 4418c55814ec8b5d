"""The KV cache as tensors, one a layer, reached by block id. Who holds which block is the affair of `workbench.kv`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import torch

from workbench.errors import UsageError, WorkbenchError
from workbench.model.config import ModelConfig
from workbench.plan import Move, PoolView


class KVCache:
    """``layers[i]``: ``[num_blocks, block_size, 2, num_kv_heads, head_dim]``, keys at index 0, values at 1. With latent
    attention ``[num_blocks, block_size, kv_lora_rank + qk_rope_head_dim]``, latent and rotated key."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        pinned: bool = False,
    ) -> None:
        """``pinned``: in host memory that a GPU copies to and from directly."""
        shape = (config.num_layers, num_blocks, block_size, *config.cached_shape)
        self.storage = torch.zeros(shape, dtype=dtype, pin_memory=True) if pinned else _zeros(shape, dtype, device)
        self.layers = list(self.storage.unbind(0))
        self.block_size = block_size
        self.token_bytes = math.prod(config.cached_shape) * dtype.itemsize
        """Bytes of one token's keys and values (or its latent) in one layer."""
        self._pool: PoolView | None = None

    @property
    def num_blocks(self) -> int:
        return self.storage.shape[1]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, over all layers."""
        return len(self.layers) * self.block_size * self.token_bytes

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
        if self._pool is not None:
            self._pool.lost()
        self._pool = pool

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, in all layers: pairs of (from, to). No block may be both."""
        if copies:
            sources, targets = torch.tensor(copies, device=self.storage.device).T
            self.storage[:, targets] = self.storage[:, sources]


def move_blocks(stores: Mapping[str, KVCache], moves: Sequence[Move]) -> None:
    """Copies whole blocks between stores, in all layers, as if one after the other in the order given."""
    for (source, target), group in groupby(moves, key=lambda move: (move.source, move.target)):
        # Neighbours between the same two stores go as one copy. Nothing within such a run reads what it has written.
        run = list(group)
        taken, given = stores[source].storage, stores[target].storage
        sources = torch.tensor([move.block for move in run], device=taken.device)
        targets = torch.tensor([move.to for move in run], device=given.device)
        given[:, targets] = taken[:, sources].to(given.device)


ALIGNMENT = 64
"""Bytes of a cache line."""


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that on a CPU take memory page by page as they are written, so a large pool costs nothing until it is used.

    `torch.zeros` writes them: a pool of 2 GiB took six seconds and all its memory at once.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[begin : begin + size]).view(dtype).view(shape)
