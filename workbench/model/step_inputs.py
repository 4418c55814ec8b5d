"""The numbers that a recorded decode step reads: tensors that stay where they are, filled anew before each replay."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workbench.plan import Scheduled


class StepInputs:
    """For batches of up to ``rows`` requests whose block tables have up to ``width`` columns, on ``device``.

    On a GPU they are written in pinned host memory first and go over in one copy, or two where a block table has
    changed, which it does about once in ``block_size`` tokens. The host may write there again once a step's tokens have
    come back.
    """

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self._numbers = torch.zeros(4, rows, dtype=torch.int64, device=device)
        self.tokens, self.positions, self.slots, lengths = self._numbers
        """Each ``[rows]`` int64."""
        self.lengths = lengths.view(torch.int32)[:rows]
        """``[rows]`` int32: tokens of each request, with the one that the step computes; 0: nobody's row."""
        self.starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        """``[rows + 1]`` int32: one query each."""
        self.tables = torch.zeros(rows, width, dtype=torch.int64, device=device)
        """``[rows, width]`` int64; what stands past a request's blocks is of no meaning."""
        self._host_numbers, self._host_tables = _host(self._numbers), _host(self.tables)
        self._known: list[list[int]] = [[]] * rows
        """The block tables that stand in the rows now."""

    def fill(self, scheduled: Sequence[Scheduled], block_size: int, size: int) -> None:
        """The decodes of a plan, then rows of nobody up to ``size``."""
        starts = [item.start for item in scheduled]
        tokens = [item.request.token_ids[item.start] for item in scheduled]
        tables = [item.request.block_table for item in scheduled]
        slots = [
            table[start // block_size] * block_size + start % block_size
            for table, start in zip(tables, starts, strict=True)
        ]
        nobody = size - len(scheduled)
        lengths = [start + 1 for start in starts]
        rows = [[*tokens, *[0] * nobody], [*starts, *[0] * nobody], [*slots, *[-1] * nobody]]
        numbers = self._host_numbers
        numbers[:3, :size] = torch.tensor(rows)
        numbers[3].view(torch.int32)[:size] = torch.tensor([*lengths, *[0] * nobody], dtype=torch.int32)
        if numbers is not self._numbers:
            self._numbers.copy_(numbers, non_blocking=True)
        self._write_tables(tables)

    def _write_tables(self, tables: Sequence[list[int]]) -> None:
        changed = 0
        for row, table in enumerate(tables):
            if self._known[row] != table:
                self._host_tables[row, : len(table)] = torch.tensor(table)
                self._known[row] = table.copy()
                changed = row + 1
        if changed and self._host_tables is not self.tables:
            self.tables[:changed].copy_(self._host_tables[:changed], non_blocking=True)


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """Where the host writes what ``tensor`` shall hold: on a CPU the tensor itself, else memory that a GPU copies."""
    if tensor.device.type == "cpu":
        return tensor
    return torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available())
