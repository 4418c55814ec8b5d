"""Products with weights of any format, and the rows of an embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.reference.weights import Weight, numbers, unpack

LARGEST = {16: 32767, 8: 127}
"""The largest whole number that activations of so many bits are rounded to."""
STRETCH = 384
"""Numbers of an ``int8`` row that are added up exactly before they become a float."""


def quantize_rows(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row rounded to whole numbers: ``x ≈ xq · scale``, scale = max |x| / `LARGEST`; a row of zeros stays zero.
    A row that holds something not finite has a scale that is not a number.

    x ``[rows, in]`` float32; returns int16 ``[rows, in]`` and float32 ``[rows]``.
    """
    most = torch.tensor(float(LARGEST[bits]))  # a number over a tensor would be its reciprocal times the number
    top = x.abs().amax(-1, keepdim=True)
    factor = torch.where(top > 0, most / top, 0.0)
    return (x * factor).round().short(), (top / most)[:, 0] + (x * 0).sum(-1)


def linear(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None, activation_bits: int = 16
) -> torch.Tensor:
    """``x · weightᵀ + bias``: x ``[rows, in]`` → ``[rows, out]`` in x's dtype.

    Float weights are brought to x's dtype. With a whole-number weight x is float32 and rounded too (`quantize_rows`); a
    group's products are added exactly as whole numbers, then scaled: ``Σ over groups (Σ q · xq) · scale + offset ·
    Σ xq``, times the row's scale.
    """
    if not weight.whole_numbers:
        return F.linear(x, weight.data.to(x.dtype), bias)
    xq, x_scale = quantize_rows(x if weight.order is None else x[:, weight.order], activation_bits)
    q, scale, offset = numbers(weight)
    if weight.format == "int8":
        parts = [
            (a.double() @ b.double().T).float()
            for a, b in zip(xq.split(STRETCH, 1), q[:, 0].split(STRETCH, 1), strict=True)
        ]
        return _plus(torch.stack(parts).sum(0) * (x_scale[:, None] * scale[:, 0]), bias)
    grouped = xq.reshape(len(x), q.shape[1], q.shape[2]).double()
    sums = torch.einsum("rgk,ogk->rog", grouped, q.double()).float()
    total = (sums * scale).sum(-1)
    if offset is not None:
        total = total + torch.einsum("rg,og->ro", grouped.sum(-1).float(), offset)
    return _plus(total * x_scale[:, None], bias)


def embedding(weight: Weight, token_ids: torch.Tensor) -> torch.Tensor:
    """The rows of ``token_ids`` ``[rows]`` int64: ``[rows, in]``, float32 unless the weight is of other floats."""
    if not weight.whole_numbers:
        return F.embedding(token_ids, weight.data)
    rows = Weight(
        weight.format,
        (len(token_ids), weight.shape[1]),
        weight.data[token_ids],
        None if weight.scales is None else weight.scales[token_ids],
        weight.group,
    )
    return unpack(rows)


def _plus(product: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return product if bias is None else product + bias
