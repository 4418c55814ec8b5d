"""What paged attention does on the host: check the tensors, choose tiles and plan, make room, launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as once
from typing import Any, NamedTuple

import torch

from kernels.triton.attention_call import (
    architecture,
    padded_dim,
    refusal_of_heads,
    refusal_of_sinks,
    score_values,
    tile_values,
)
from kernels.triton.flash_tiles import Tiles, decode_tiles, paged, tiles
from kernels.triton.launch import require, strange
from kernels.triton.paged_plan import Bounds, Plan, bounds_for, bounds_of, decode_limit, make_plan

TABLE_TYPES = (torch.int64, torch.int32)


class Pages(NamedTuple):
    """Heads and where they lie: what decides tiles, and with lengths a plan."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype  # of queries
    device: torch.device

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    def prefill_tiles(self, windowed: bool) -> Tiles:
        arch, padded = architecture(self.device), padded_dim(self.head_dim)
        return paged(tiles(arch, padded, self.dtype.itemsize, descriptors=False, windowed=windowed))

    def parts(self, chosen: Tiles) -> int:
        """In how many parts the result of a tile is computed, by as many programs."""
        return 1

    def decode_tiles(self, rows: int) -> Tiles:
        return decode_tiles(architecture(self.device), padded_dim(self.head_dim), self.dtype.itemsize, rows)

    def plan(
        self,
        query_start: torch.Tensor,
        seq_lens: torch.Tensor,
        bounds: Bounds,
        window: int | None = None,
        split_size: int | None = None,
        num_sms: int | None = None,
    ) -> Plan:
        """See `paged_plan.make_plan`; ``num_sms``: this GPU's unless given."""
        # Not the batch's own width: tiles must not depend on the batch.
        rows = max(bounds.width, decode_limit(self.group)) * self.group
        tiles = self.decode_tiles(rows)
        return make_plan(
            query_start, seq_lens, bounds,
            columns=self.num_kv_heads * self.parts(tiles), group=self.group, tiles=tiles,
            window=window, split_size=split_size, num_sms=num_sms or multiprocessors(self.device),
        )  # fmt: skip


@once
def multiprocessors(device: torch.device) -> int:
    """How many programs run at once at least; 1 where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def refusal(q: torch.Tensor, cache: torch.Tensor, block_tables: torch.Tensor, sinks: torch.Tensor | None = None) -> str:
    """Why these tensors cannot be taken; empty if they can. Values on the device (lengths, tables) are trusted."""
    fit = q.ndim == 3 and cache.ndim == 5 and cache.shape[2] == 2 and cache.shape[4] == q.shape[2]
    if not fit or not all((cache.shape[1], cache.shape[3], q.shape[1])) or q.shape[1] % cache.shape[3]:
        return (
            f"q {list(q.shape)}, cache {list(cache.shape)}: q must be [num_tokens, num_heads, head_dim], cache "
            "[num_blocks, block_size, 2, num_kv_heads, head_dim], and num_kv_heads divide num_heads"
        )
    if reason := refusal_of_heads(q.shape[2], q.dtype, q.device) or strange(q=q, cache=cache):
        return reason
    if cache.device != q.device:
        return f"the cache is on {cache.device} and q on {q.device}"
    if reason := refusal_of_tables(block_tables, q.device):
        return reason
    return refusal_of_sinks(sinks, q)


def refusal_of_tables(block_tables: torch.Tensor, device: torch.device) -> str:
    """Why block tables do not go with tensors on a device; empty if they do."""
    right = block_tables.ndim == 2 and block_tables.dtype in TABLE_TYPES and block_tables.device == device
    if not right or (block_tables.shape[1] > 1 and block_tables.stride(1) != 1):
        return f"block_tables must be int64 or int32 [batch, max_blocks] on {device}, each row's numbers side by side"
    return ""


def plan_for(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: list[int] | torch.Tensor,
    seq_lens: list[int] | torch.Tensor,
    *,
    window: int | None = None,
    split_size: int | None = None,
    num_sms: int | None = None,
) -> Plan:
    """A plan from lists, all known, or from tensors, whose values are not looked at. Raises ValueError for tensors that
    cannot be taken."""
    require("paged_attention", refusal(q, cache, block_tables))
    pages = Pages(q.shape[1], cache.shape[3], q.shape[2], q.dtype, q.device)
    longest = block_tables.shape[1] * cache.shape[1]
    return plan_of(pages, len(q), longest, query_start, seq_lens, window, split_size, num_sms)


def plan_of(
    pages: Pages,
    num_tokens: int,
    longest: int,
    query_start: list[int] | torch.Tensor,
    seq_lens: list[int] | torch.Tensor,
    window: int | None = None,
    split_size: int | None = None,
    num_sms: int | None = None,
) -> Plan:
    """`plan_for` these heads; of tensors only ``num_tokens`` and the ``longest`` request that tables have room for are
    known."""
    if isinstance(query_start, torch.Tensor) and isinstance(seq_lens, torch.Tensor):
        bounds = bounds_for(num_tokens, longest, pages.group)
        return pages.plan(query_start, seq_lens, bounds, window, split_size, num_sms)
    if isinstance(query_start, torch.Tensor) or isinstance(seq_lens, torch.Tensor):
        raise ValueError("query_start and seq_lens must be both lists or both int32 tensors")
    bounds = bounds_of(query_start, seq_lens, pages.group)
    starts, lengths = (
        torch.tensor(numbers, dtype=torch.int32, device=pages.device) for numbers in (query_start, seq_lens)
    )
    return pages.plan(starts, lengths, bounds, window, split_size, num_sms)


class Call(NamedTuple):
    """One call: its plan, and a value for every argument of its kernels."""

    pages: Pages
    plan: Plan
    out: torch.Tensor
    values: dict[str, Any]

    def run(self, kernel: Any, merge: Callable[..., None]) -> torch.Tensor:
        """Launches what the plan asks for; ``merge`` joins the splits. Returns ``out``."""
        if self.empty():
            return self.out
        if self.plan.width and self.plan.num_splits > 1:
            partial = self.workspace()
            self.decode(kernel, partial)
            merge(*partial, **self.values | {"BLOCK_N": self.plan.tiles.block_n})
        elif self.plan.width:
            self.decode(kernel)
        if self.plan.prefills:
            self.prefill(kernel)
        return self.out

    def empty(self) -> bool:
        return not self.out.numel() or not self.values["batch"]

    def workspace(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for the partial results of every split."""
        shape = (self.plan.num_splits, self.values["batch"] * self.plan.width, *self.out.shape[1:])
        partial = torch.empty(shape, dtype=torch.float32, device=self.out.device)
        return partial, torch.empty(shape[:3], dtype=torch.float32, device=self.out.device)

    def decode(self, kernel: Any, partial: tuple[torch.Tensor, torch.Tensor] | None = None) -> None:
        """Launches over the requests that decode; their results go to ``partial`` where there is one."""
        chosen = self.plan.tiles
        tiles_each = -(-self.plan.width * self.pages.group // chosen.block_m)
        more: dict[str, Any] = {"DECODE": True, "PARTIAL": partial is not None, "tiles_each": tiles_each}
        if partial is not None:
            more |= {"out": partial[0], "lse": partial[1], "HAS_LSE": True, "stride_ls": partial[1].stride(0)}
            more |= {f"stride_o{x}": stride for x, stride in zip("sth", partial[0].stride(), strict=False)}
        self._run(kernel, chosen, self.values["batch"] * tiles_each * self.plan.num_splits, more)

    def prefill(self, kernel: Any) -> None:
        """Launches over all others; an upper bound of tiles that needs no look at the lengths."""
        chosen = self.pages.prefill_tiles(self.plan.window is not None)
        num_tiles = self.out.shape[0] * self.pages.group // chosen.block_m + self.values["batch"]
        self._run(kernel, chosen, num_tiles, {"DECODE": False, "PARTIAL": False, "tiles_each": 1})

    def _run(self, kernel: Any, chosen: Tiles, programs: int, more: dict[str, Any]) -> None:
        values = self.values | tile_values(chosen) | more
        values["PARTS"] = self.pages.parts(chosen)
        named = {name: values[name] for name in kernel.arg_names}
        grid = (programs * values["PARTS"], self.pages.num_kv_heads)
        kernel[grid](**named, num_warps=chosen.num_warps, num_stages=chosen.num_stages)


def check(q: torch.Tensor, block_tables: torch.Tensor, plan: Plan, lse: torch.Tensor | None) -> None:
    """Raises ValueError for a plan of another batch, and for room for sums that does not go with the queries."""
    batch = plan.seq_lens.shape[0]
    if len(block_tables) != batch or plan.seq_lens.device != q.device:
        raise ValueError(f"the plan is for {batch} requests on {plan.seq_lens.device}, not {len(block_tables)} here")
    right = lse is None or (lse.dtype == torch.float32 and lse.shape == q.shape[:2] and lse.is_contiguous())
    if lse is not None and not (right and lse.device == q.device):
        raise ValueError(f"lse must be contiguous float32 {list(q.shape[:2])} on {q.device}")


def plan_values(plan: Plan, block_tables: torch.Tensor) -> dict[str, Any]:
    """Arguments that a plan gives a kernel."""
    return {
        **{"cu_q": plan.query_start, "seq_lens": plan.seq_lens, "batch": plan.seq_lens.shape[0]},
        **{"width": plan.width, "num_splits": plan.num_splits, "split_size": plan.split_size},
        **{"tables": block_tables, "stride_table": block_tables.stride(0), "stride_os": 0, "stride_ls": 0},
    }


def prepare(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    plan: Plan,
    scale: float,
    causal: bool,
    softcap: float | None,
    sinks: torch.Tensor | None,
    lse: torch.Tensor | None,
    out: torch.Tensor | None,
) -> Call:
    """Raises ValueError for what the kernels do not take."""
    require("paged_attention", refusal(q, cache, block_tables, sinks))
    check(q, block_tables, plan, lse)
    if out is None:
        out = q.new_empty(q.shape)
    elif out.shape != q.shape or out.device != q.device or strange(out=out):
        raise ValueError(f"out is {out.dtype} {list(out.shape)} on {out.device}; it must be as q, {list(q.shape)}")
    pages = Pages(q.shape[1], cache.shape[3], q.shape[2], q.dtype, q.device)
    k, v = cache[:, :, 0], cache[:, :, 1]
    values: dict[str, Any] = {
        **{"q": q, "k": k, "v": v, "out": out, "lse": lse, "sinks": sinks},
        **plan_values(plan, block_tables),
        **score_values(q, pages.num_kv_heads, scale, causal, plan.window, softcap, sinks),
        **dict(zip(("stride_page", "stride_kt", "stride_kh"), k.stride(), strict=False)),
        **{"stride_qt": q.stride(0), "stride_qh": q.stride(1), "stride_ot": out.stride(0), "stride_oh": out.stride(1)},
        "PAGE": cache.shape[1],
        "HAS_LSE": lse is not None,
    }
    return Call(pages, plan, out, values)
