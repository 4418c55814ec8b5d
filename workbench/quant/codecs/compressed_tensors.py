"""compressed-tensors' ``pack-quantized``: whole numbers of 4 or 8 bits in words of 32.

=====================  ==========================================================================================
``weight_packed``      int32 ``[N, K · bits / 32]``, along K, first number lowest, each + 2^(bits − 1)
``weight_scale``       ``[N, groups]`` floats
``weight_zero_point``  int32 ``[N · bits / 32, groups]``, along N, likewise; only where asymmetric
``weight_g_idx``       int32 ``[K]``: the group of each column; only where groups are no neighbours
``weight_shape``       int64 ``[2]``
=====================  ==========================================================================================

Lengths are filled up to whole words. Source: compressed-tensors, ``compressors/pack_quantized``; numbers of 3, 5, 6 and
7 bits are packed in another way since 2026 and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from workbench.errors import UsageError, WorkbenchError
from workbench.quant.args import QuantArgs
from workbench.quant.core import QParams
from workbench.quant.result import QuantizedWeight

BITS = (4, 8)
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def require_packable(args: QuantArgs) -> None:
    """Raises UsageError for numbers or granularities that this format does not hold."""
    if args.type != "int" or args.bits not in BITS:
        raise UsageError(f"pack-quantized holds whole numbers of 4 or 8 bits, not {args.type} of {args.bits}")
    if args.strategy not in ("channel", "group"):
        raise UsageError(f"pack-quantized holds scales of channels or groups, not of a {args.strategy}")


def encode(weight: QuantizedWeight) -> dict[str, Tensor]:
    """The tensors that stand for a weight, by the ends of their names."""
    require_packable(weight.args)
    bits = weight.args.bits
    made = {
        "weight_packed": pack(weight.q, bits),
        "weight_scale": weight.params.scale.to(_DTYPES[weight.args.scale]),
        "weight_shape": torch.tensor(weight.q.shape, dtype=torch.int64),
    }
    if weight.params.zero is not None:
        made["weight_zero_point"] = pack(weight.params.zero.T, bits).T.contiguous()
    if weight.group_of is not None:
        made["weight_g_idx"] = weight.group_of.to(torch.int32)
    return made


def decode(tensors: Mapping[str, Tensor], args: QuantArgs) -> QuantizedWeight:
    """A weight out of its tensors. Raises WorkbenchError where one is missing or does not fit the others."""
    needed = ["weight_packed", "weight_scale", "weight_shape", *([] if args.symmetric else ["weight_zero_point"])]
    if absent := [name for name in needed if name not in tensors]:
        raise WorkbenchError(f"a packed weight lacks {', '.join(absent)}: fetch the checkpoint again")
    rows, columns = tensors["weight_shape"].tolist()
    scale = tensors["weight_scale"].float()
    groups = args.num_blocks((rows, columns))
    words = -(-columns * args.bits // 32)
    if tuple(scale.shape) != groups or tuple(tensors["weight_packed"].shape) != (rows, words):
        raise WorkbenchError(
            f"a packed weight of {rows} × {columns} should have {words} words a row and scales {list(groups)}; it has "
            f"{list(tensors['weight_packed'].shape)} and {list(scale.shape)}: group size and bits are another's"
        )
    zero = None
    if not args.symmetric:
        zero = unpack(tensors["weight_zero_point"].T, args.bits, rows).T.contiguous()
    group_of = tensors.get("weight_g_idx")
    q = unpack(tensors["weight_packed"], args.bits, columns)
    return QuantizedWeight(q, QParams(scale, zero), args, None if group_of is None else group_of.long())


def pack(q: Tensor, bits: int) -> Tensor:
    """Signed numbers ``[rows, n]`` in words ``[rows, ceil(n · bits / 32)]`` int32."""
    each = 32 // bits
    shifted = F.pad(q.long() + (1 << bits - 1), (0, -q.shape[1] % each))
    places = torch.arange(each) * bits
    words = (shifted.reshape(len(q), -1, each) << places).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)  # the top bit is a sign there


def unpack(words: Tensor, bits: int, length: int) -> Tensor:
    """The way back: int8 ``[rows, length]``."""
    places = torch.arange(32 // bits) * bits
    # Masked after the shift: the words are signed, and a shift drags the sign along.
    numbers = (words.long()[..., None] >> places) & (1 << bits) - 1
    return (numbers.flatten(-2)[:, :length] - (1 << bits - 1)).to(torch.int8)


def config(args: QuantArgs, act_order: str | None = None) -> dict[str, Any]:
    """``quantization_config`` of a model whose every linear layer but the head is quantized so."""
    require_packable(args)
    weights = {
        "num_bits": args.bits,
        "type": args.type,
        "strategy": args.strategy,
        "group_size": args.group_size,
        "symmetric": args.symmetric,
        "dynamic": False,
        "actorder": act_order,
        "observer": args.observer,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "format": "pack-quantized"}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }
