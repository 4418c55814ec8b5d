"""GPTQ's checkpoints, versions 1 and 2.

===========  ================================================================================================
``qweight``  int32 ``[K · bits / 32, N]``, along K, first number lowest, 0 … 2^bits − 1
``qzeros``   int32 ``[groups, N · bits / 32]``, along N; version 1 stores zero − 1, so that 0 wraps around to
             all ones; version 2 stores the zero
``scales``   float16 ``[groups, N]``
``g_idx``    int32 ``[K]``: the group of each row
===========  ================================================================================================

A weight is ``(q − zero) · scale``. Version 1's zero is ``(stored + 1) & mask``: whoever leaves the mask out reads 16
for 0. Files that say version 1 and hold version 2 are about; symmetric ones tell, as all their zeros are half the
range. Source: AutoGPTQ, ``qlinear_cuda_old.py``; GPTQModel, ``utils/model.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from workbench.checks import shown
from workbench.errors import UsageError
from workbench.quant.args import QuantArgs
from workbench.quant.codecs.interface import (
    BITS,
    choice,
    group_args,
    half_scales,
    of_zeros,
    require_groups,
    require_integers,
    require_matrix,
    require_shapes,
    require_tensors,
    zeros_of,
)
from workbench.quant.codecs.words import pack, unpack
from workbench.quant.result import QuantizedWeight

VERSIONS = {"gptq": 1, "gptq_v2": 2}


@dataclass(frozen=True, slots=True)
class Gptq:
    args: QuantArgs
    order: str | None = None
    """``static`` or ``group``; both are ``desc_act``."""
    version: int | None = None
    """None for writing: 1 where symmetric, as everybody reads it, else 2, which has no zero that wraps around."""

    METHOD: ClassVar[str] = "gptq"
    ENDS: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales", "g_idx")

    def __post_init__(self) -> None:
        require_integers(self.args, "a GPTQ checkpoint")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Gptq:
        """Raises UsageError for what is not read: 2 or 3 bits, other words, layers with settings of their own."""
        bits, symmetric = choice(config, "bits", BITS), choice(config, "sym", (True, False), True)
        choice(config, "pack_dtype", ("int32",), "int32")
        if config.get("dynamic"):
            raise UsageError(f"quantization_config: dynamic={shown(config['dynamic'])}: layers with settings of their "
                             "own are not supported")  # fmt: skip
        key = "checkpoint_format" if "checkpoint_format" in config else "format"
        version = VERSIONS[choice(config, key, tuple(VERSIONS), "gptq")]
        order = "group" if choice(config, "desc_act", (True, False), False) else None
        return cls(group_args(bits, config, symmetric), order, version)

    @property
    def _written(self) -> int:
        return self.version or (1 if self.args.symmetric else 2)

    def require_fit(self, rows: int, columns: int, name: str) -> None:
        bits = self.args.bits
        if rows * bits % 32 or columns * bits % 32:
            raise UsageError(f"{name}: {rows} × {columns} numbers of {bits} bits are no whole words each way, which a "
                             "GPTQ checkpoint needs: write compressed-tensors")  # fmt: skip

    def encode(self, weight: QuantizedWeight, name: str = "weight") -> dict[str, Tensor]:
        bits, half, (rows, columns) = self.args.bits, 1 << self.args.bits - 1, weight.q.shape
        self.require_fit(rows, columns, name)
        scale = weight.params.scale
        stored = (zeros_of(weight, self.args, name) + half - int(self._written == 1)) & (1 << bits) - 1
        group_of = torch.arange(columns) // (columns // scale.shape[1]) if weight.group_of is None else weight.group_of
        return {
            "qweight": pack(weight.q.short() + half, bits).T.contiguous(),
            "qzeros": pack(stored.T, bits),
            "scales": half_scales(weight, name).T.contiguous(),
            "g_idx": group_of.to(torch.int32),
        }

    def decode(self, tensors: Mapping[str, Tensor], name: str = "weight") -> QuantizedWeight:
        bits, half, mask = self.args.bits, 1 << self.args.bits - 1, (1 << self.args.bits) - 1
        qweight, qzeros, scales = require_tensors(tensors, ("qweight", "qzeros", "scales"), name)
        require_matrix(qweight, f"{name}.qweight")
        columns, rows = len(qweight) * 32 // bits, qweight.shape[-1]
        width = self.args.group_size or columns
        groups = -(-columns // width)
        require_shapes(tensors, {"qzeros": (groups, -(-rows * bits // 32)), "scales": (groups, rows)}, name)
        stored = unpack(qzeros, bits, rows)
        first = int((self._detected(stored) or self._written) == 1)
        zero = (((stored + first) & mask) - half).T.to(torch.int8).contiguous()
        group_of = places = torch.arange(columns) // width
        if "g_idx" in tensors:
            require_groups(tensors["g_idx"], groups, columns, name)
            group_of = tensors["g_idx"].long()
        elif self.order == "group" and groups > 1:
            require_tensors(tensors, ("g_idx",), name)  # without it columns would get each other's scales
        q = (unpack(qweight.T, bits, columns) - half).to(torch.int8)
        neighbours = columns % width == 0 and torch.equal(group_of, places)
        made = of_zeros(q, scales.T.float().contiguous(), zero, self.args)
        return made if neighbours else replace(made, group_of=group_of)

    def _detected(self, stored: Tensor) -> int | None:
        """The version that the zeros of a symmetric weight speak of, whatever the configuration says."""
        middle = 1 << self.args.bits - 1
        if self.args.symmetric and bool((stored == middle).all()):
            return 2
        return 1 if self.args.symmetric and bool((stored == middle - 1).all()) else None

    def config(self) -> dict[str, Any]:
        return {
            "quant_method": self.METHOD,
            "bits": self.args.bits,
            "group_size": self.args.group_size or -1,
            "sym": self.args.symmetric,
            "desc_act": self.order is not None,
            "static_groups": self.order == "static",
            "checkpoint_format": next(name for name, version in VERSIONS.items() if version == self._written),
            "pack_dtype": "int32",
            "lm_head": False,
        }
