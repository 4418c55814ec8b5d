"""What stands in for a tape or a CUDA graph, and for an attention kernel that such a graph may hold."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from workbench.attention.interface import AttentionBatch
from workbench.model.captured import Recorded


class FakeRecorder:
    """Keeps the function and calls it at each replay: what a graph would do, with everything in sight."""

    def __init__(self) -> None:
        self.recordings = 0
        self.replays = 0

    def record(self, run: Callable[[], torch.Tensor]) -> Recorded:
        self.recordings += 1
        result = run()

        def replay() -> None:
            self.replays += 1
            result.copy_(run())

        return Recorded(replay, result.zero_())


class FixedShapes:
    """Decode attention whose operations do not depend on lengths: all places of the tables are read and masked."""

    name = "fixed"
    capturable = True

    def prepare(
        self, batch: AttentionBatch, window: int | None, dtype: torch.dtype
    ) -> tuple[AttentionBatch, torch.Tensor]:
        places = torch.arange(batch.block_tables.shape[1] * batch.block_size, device=batch.lengths.device)
        hidden = places >= batch.lengths[:, None]
        if window is not None:
            hidden |= places < batch.lengths[:, None] - window
        bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(hidden, float("-inf"))
        return batch, bias

    def attend(
        self, q: torch.Tensor, cache: torch.Tensor, prepared: tuple[AttentionBatch, torch.Tensor], scale: float
    ) -> torch.Tensor:
        batch, bias = prepared
        keys, values = cache[batch.block_tables].flatten(1, 2).unbind(2)  # each [batch, places, num_kv_heads, head_dim]
        grouped = q.view(len(q), keys.shape[2], -1, q.shape[-1])
        return F.scaled_dot_product_attention(
            grouped, keys.transpose(1, 2), values.transpose(1, 2), bias[:, None, None], scale=scale
        ).reshape(q.shape)
