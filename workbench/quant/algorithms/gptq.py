"""GPTQ (Frantar et al. 2022): one column after the other, each error made good by the columns that are still to come.

With the Hessian H of the layer's squared error, rounding column j by e changes the best values of the others by
−e · U[j, j+1:] / U[j, j], where U is the upper Cholesky factor of H⁻¹. Columns are taken in blocks, so that most of the
update is one matrix product a block.

Differences from the authors' code: blocks are whole groups, so that a group's scale always sees every update before it;
dead columns do not count in the mean that damping is a share of, and are 0 before ranges are taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.quant.algorithms.rtn import rtn
from workbench.quant.args import QuantArgs
from workbench.quant.core import QParams, from_grid, qparams, to_grid
from workbench.quant.observers import observe
from workbench.quant.result import QuantizedWeight, Report, report
from workbench.quant.stats import InputStats

ORDERS = ("none", "static", "group")
"""Which column comes first. ``none``: as they lie. Otherwise those whose inputs are largest, while most can still be
made good: ``static`` keeps the groups of neighbours, with scales of the unchanged weight, and costs nothing later;
``group`` makes groups of columns that follow each other in this order, which a kernel has to look up (``g_idx``)."""
BLOCK = 128
MORE_DAMPING = (1, 10, 100)
"""What damping is multiplied by until the Hessian can be factored."""


def gptq(
    weight: Tensor,
    stats: InputStats,
    args: QuantArgs,
    order: str = "none",
    damping: float = 0.01,
    name: str = "weight",
) -> tuple[QuantizedWeight, Report]:
    """Quantizes ``weight`` ``[N, K]`` for inputs as ``stats`` saw them.

    Where the Hessian cannot be factored under any damping the weight is rounded to nearest, and the report says so.
    Raises UsageError for an unknown order, for blocks of several rows, and where groups do not divide K.
    """
    if order not in ORDERS:
        raise UsageError(f"act-order {order!r} is not known; choose from {', '.join(ORDERS)}")
    if args.strategy not in ("tensor", "channel", "group"):
        raise UsageError(f"{name}: gptq needs scales of a tensor, a channel or a group, not of a {args.strategy}")
    width = args.block_size(weight.shape, name)[1]
    hessian = stats.hessian
    dead = hessian.diagonal() == 0
    places = torch.arange(len(dead))
    perm = places if order == "none" else torch.argsort(hessian.diagonal(), descending=True, stable=True)
    factor, used = _factor(hessian[perm][:, perm], dead[perm], damping) if stats.tokens else (None, damping)
    if factor is None:
        made, _ = rtn(weight, args, stats, name)
        why = f"{name}: rounded to nearest, as the Hessian of {stats.tokens} tokens cannot be factored"
        return made, report(name, "gptq", weight, made.dequantize(), stats, fallbacks=(why,))
    columns = weight.float().masked_fill(dead, 0).T  # [K, N]: a column is to be one piece of memory
    by_neighbours = order != "group" or args.strategy != "group"
    fixed = None
    if args.strategy != "group" or order == "static" or args.scale == "fp8_e4m3":
        # E4M3 scales stand under one of the tensor, which an updated group could leave behind.
        grouped = columns if by_neighbours else columns[perm]
        fixed = qparams(*observe(grouped.T, args, name=name), args)
    group_of = (perm if by_neighbours else places) // width
    q, params = _sweep(columns[perm].contiguous(), factor.float(), args, width, group_of, fixed)
    back_to = torch.argsort(perm)
    made = QuantizedWeight(q[back_to].T.contiguous(), params, args, None if by_neighbours else group_of[back_to])
    told = report(name, "gptq", weight, made.dequantize(), stats, dead_columns=int(dead.sum()), damping=used)
    return made, told


def _sweep(
    columns: Tensor, factor: Tensor, args: QuantArgs, width: int, group_of: Tensor, fixed: QParams | None
) -> tuple[Tensor, QParams]:
    """Rounds ``columns`` ``[K, N]`` one by one, which it overwrites. Returns codes ``[K, N]`` and their parameters.

    ``fixed``: parameters from before; otherwise a group's are taken when its first column is reached.
    """
    inputs = len(columns)
    block = width * max(1, BLOCK // width) if fixed is None else BLOCK
    q = torch.empty_like(columns) if args.element else torch.empty(columns.shape, dtype=torch.int8)
    found: list[QParams] = []
    groups = group_of.tolist()
    for start in range(0, inputs, block):
        end = min(start + block, inputs)
        here, errors = columns[start:end], torch.empty_like(columns[start:end])
        for j in range(end - start):
            at = start + j
            if fixed is None and at % width == 0:
                found.append(qparams(*observe(here[j : j + width].T, args), args))
            params, across = (found[-1], 0) if fixed is None else (fixed, groups[at])
            step, zero = params.step[:, across], None if params.zero is None else params.zero[:, across]
            q[at] = to_grid(here[j], step, zero, args)
            errors[j] = compensate(here[j:], from_grid(q[at], step, zero), factor[at, at:end])
        columns[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    if fixed is not None:
        return q, fixed
    zeros = [p.zero for p in found if p.zero is not None]
    return q, QParams(torch.cat([p.scale for p in found], 1), torch.cat(zeros, 1) if zeros else None)


def compensate(columns: Tensor, rounded: Tensor, factors: Tensor) -> Tensor:
    """The first of ``columns`` ``[k, N]`` became ``rounded`` ``[N]``: changes the others, in place, to what is best.

    factors ``[k]``: the first column's row of U, from the diagonal on. Returns the error ``[N]`` by U's diagonal, which
    changes columns beyond these likewise.
    """
    error = (columns[0] - rounded) / factors[0]
    columns[1:].addr_(factors[1:], error, alpha=-1)
    return error


def _factor(hessian: Tensor, dead: Tensor, damping: float) -> tuple[Tensor | None, float]:
    """The upper Cholesky factor of the inverse, float64, and the damping it took; None where no damping is enough."""
    live = hessian.diagonal()[~dead]
    mean = float(live.mean()) if len(live) else 1.0
    for times in MORE_DAMPING:
        damped = hessian + torch.diag(torch.where(dead, 1.0, damping * times * mean))
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed and bool(upper.isfinite().all()):
                return upper, damping * times
    return None, damping
