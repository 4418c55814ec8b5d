"""Checkpoint formats said once more, number by number in plain Python: the witness for codecs."""

from __future__ import annotations

import torch

from workbench.quant.args import QuantArgs
from workbench.quant.core import QParams
from workbench.quant.result import QuantizedWeight

AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]
"""Which of eight outputs nibble i holds (AutoAWQ, ``packing_utils.py``)."""


def bits_of_word(word: int, place: int, bits: int) -> int:
    """Number ``place`` of an int32."""
    return (word % 2**32) // 2 ** (bits * place) % 2**bits


def gptq_weight(tensors: dict[str, torch.Tensor], bits: int, plus_one: bool) -> torch.Tensor:
    """float64 ``[N, K]``."""
    qweight, qzeros, scales = (tensors[end].tolist() for end in ("qweight", "qzeros", "scales"))
    each, group_of = 32 // bits, tensors["g_idx"].tolist()
    rows = []
    for n in range(len(scales[0])):
        row = []
        for k, group in enumerate(group_of):
            q = bits_of_word(qweight[k // each][n], k % each, bits)
            zero = (bits_of_word(qzeros[group][n // each], n % each, bits) + plus_one) % 2**bits
            row.append((q - zero) * scales[group][n])
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def awq_weight(tensors: dict[str, torch.Tensor], group: int) -> torch.Tensor:
    qweight, qzeros, scales = (tensors[end].tolist() for end in ("qweight", "qzeros", "scales"))
    rows = []
    for n in range(len(scales[0])):
        nibble = AWQ_COLUMNS.index(n % 8)
        row = []
        for k in range(len(qweight)):
            q, zero = (bits_of_word(w[n // 8], nibble, 4) for w in (qweight[k], qzeros[k // group]))
            row.append((q - zero) * scales[k // group][n])
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def packed_weight(tensors: dict[str, torch.Tensor], bits: int) -> torch.Tensor:
    packed, scales, each = tensors["weight_packed"].tolist(), tensors["weight_scale"].tolist(), 32 // bits
    zeros = tensors["weight_zero_point"].tolist() if "weight_zero_point" in tensors else None
    count, columns = tensors["weight_shape"].tolist()
    width = columns // len(scales[0])
    places = tensors["weight_g_idx"].tolist() if "weight_g_idx" in tensors else [k // width for k in range(columns)]
    rows = []
    for n in range(count):
        row = []
        for k, group in enumerate(places):
            q = bits_of_word(packed[n][k // each], k % each, bits)
            zero = 2 ** (bits - 1) if zeros is None else bits_of_word(zeros[n // each][group], n % each, bits)
            row.append((q - zero) * scales[n][group])
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def random_weight(
    rows: int, columns: int, group: int = 32, *, bits: int = 4, symmetric: bool = False, seed: int = 0
) -> QuantizedWeight:
    """Numbers over the whole range, zeros too; −1 is one scale a row."""
    generator = torch.Generator().manual_seed(seed)
    args = QuantArgs(bits, group_size=1, symmetric=symmetric, scale="fp16").with_group(group)
    low, groups = -(2 ** (bits - 1)), args.num_blocks((rows, columns))[1]
    q, zero = (torch.randint(low, -low, (rows, n), generator=generator).to(torch.int8) for n in (columns, groups))
    scale = torch.rand(rows, groups, generator=generator).add_(0.01).half().float()
    return QuantizedWeight(q, QParams(scale, None if symmetric else zero), args)
