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
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from workbench.checks import as_whole, shown
from workbench.errors import UsageError, WorkbenchError
from workbench.quant.args import QuantArgs
from workbench.quant.codecs.interface import (
    BITS,
    choice,
    require_groups,
    require_integers,
    require_shapes,
    require_tensors,
    zeros_of,
)
from workbench.quant.codecs.words import pack, unpack
from workbench.quant.core import QParams
from workbench.quant.result import QuantizedWeight

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_BY_INDEX = ("group", "dynamic")
_ORDERS = (None, "static", "weight", *_BY_INDEX)


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    args: QuantArgs
    order: str | None = None
    """Act-order, which only tells how the weights were made: ``static`` or ``group``."""

    METHOD: ClassVar[str] = "compressed-tensors"
    ENDS: ClassVar[tuple[str, ...]] = (
        "weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape",
    )  # fmt: skip

    def __post_init__(self) -> None:
        require_integers(self.args, "compressed-tensors' pack-quantized")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CompressedTensors:
        """Raises UsageError for what is not read: activations or a KV cache in fewer bits, other formats, weights of
        several kinds. ``sparsity_config`` of a dense model is a leftover and means nothing."""
        sparsity = config.get("sparsity_config") or {}
        if isinstance(sparsity, Mapping):
            choice(sparsity, "format", ("dense",), "dense")
        choice(config, "kv_cache_scheme", (None,))
        groups = config.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise UsageError(f"quantization_config: config_groups={shown(groups)} must say how weights are quantized")
        found = []
        for label, group in groups.items():
            if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
                raise UsageError(f"quantization_config: config_groups.{label}={shown(group)} must say how weights are "
                                 "quantized")  # fmt: skip
            for key in ("input_activations", "output_activations"):
                choice(group, key, (None,))
            choice(group, "format", ("pack-quantized",), config.get("format"))
            found.append(_read_args(group["weights"]))
        if any(one != found[0] for one in found):
            raise UsageError("quantization_config: weights of several kinds in one model are not supported")
        return cls(*found[0])

    def require_fit(self, rows: int, columns: int, name: str) -> None:
        self.args.block_size((rows, columns), name)

    def encode(self, weight: QuantizedWeight, name: str = "weight") -> dict[str, Tensor]:
        bits, half, zero = self.args.bits, 1 << self.args.bits - 1, zeros_of(weight, self.args, name)
        made = {
            "weight_packed": pack(weight.q.short() + half, bits),
            "weight_scale": weight.params.scale.to(_DTYPES[self.args.scale]).contiguous(),
            "weight_shape": torch.tensor(weight.q.shape, dtype=torch.int64),
        }
        if not self.args.symmetric:
            made["weight_zero_point"] = pack(zero.T + half, bits).T.contiguous()
        group_of = weight.group_of
        if group_of is None and self.order in _BY_INDEX:  # one that GPTQ could only round to nearest
            group_of = _neighbours(weight.q.shape[1], weight.params.scale.shape[1])
        if group_of is not None:
            made["weight_g_idx"] = group_of.to(torch.int32)
        return made

    def decode(self, tensors: Mapping[str, Tensor], name: str = "weight") -> QuantizedWeight:
        bits, half, asymmetric = self.args.bits, 1 << self.args.bits - 1, not self.args.symmetric
        needed = ["weight_shape", "weight_packed", "weight_scale", *(["weight_zero_point"] if asymmetric else [])]
        shape, packed, scale, *zeros = require_tensors(tensors, needed, name)
        require_shapes(tensors, {"weight_shape": (2,)}, name)
        rows, columns = shape.tolist()
        groups = self.args.num_blocks((rows, columns), name)[1]
        shapes = {"weight_packed": (rows, -(-columns * bits // 32)), "weight_scale": (rows, groups)}
        require_shapes(tensors, {**shapes, "weight_zero_point": (-(-rows * bits // 32), groups)}, name)
        stray = tensors.get("weight_zero_point")
        if (
            self.args.symmetric and stray is not None and bool(stray.any())
        ):  # zeros alone: of files that do not pack them
            require_tensors(tensors, ("weight_zero_point",), name)
            if bool((unpack(stray.T, bits, rows) != half).any()):
                raise WorkbenchError(f"{name} has zero points though its configuration says symmetric: they would be "
                                     "lost")  # fmt: skip
        zero = (unpack(zeros[0].T, bits, rows) - half).T.to(torch.int8).contiguous() if zeros else None
        q = (unpack(packed, bits, columns) - half).to(torch.int8)
        group_of = self._group_of(tensors, groups, columns, name)
        kept = next((kind for kind, dtype in _DTYPES.items() if dtype == scale.dtype), self.args.scale)
        return QuantizedWeight(q, QParams(scale.float(), zero), replace(self.args, scale=kept), group_of)

    def _group_of(self, tensors: Mapping[str, Tensor], groups: int, columns: int, name: str) -> Tensor | None:
        """The group of each column, where groups are no neighbours."""
        if "weight_g_idx" not in tensors:
            if self.order in _BY_INDEX and groups > 1:
                require_tensors(tensors, ("weight_g_idx",), name)  # columns would get each other's scales
            return None
        group_of = tensors["weight_g_idx"]
        require_groups(group_of, groups, columns, name)
        neighbours = columns % groups == 0 and torch.equal(group_of.long(), _neighbours(columns, groups))
        return None if neighbours else group_of.long()

    def config(self) -> dict[str, Any]:
        weights = {
            "num_bits": self.args.bits,
            "type": self.args.type,
            "strategy": self.args.strategy,
            "group_size": self.args.group_size,
            "symmetric": self.args.symmetric,
            "dynamic": False,
            "actorder": self.order,
            "observer": self.args.observer,
        }
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        return {
            "quant_method": self.METHOD,
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {**group, "format": "pack-quantized"}},
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
        }


def _read_args(weights: Mapping[str, Any]) -> tuple[QuantArgs, str | None]:
    bits = choice(weights, "num_bits", BITS)
    choice(weights, "type", ("int",), "int")
    choice(weights, "dynamic", (False,), False)
    order = choice(weights, "actorder", _ORDERS)
    strategy = choice(weights, "strategy", ("group", "channel"), "group" if weights.get("group_size") else "channel")
    symmetric = choice(weights, "symmetric", (True, False), True)
    size = as_whole(weights.get("group_size")) if strategy == "group" else None
    if strategy == "group" and (size is None or size < 1):
        raise UsageError(f"quantization_config: group_size={shown(weights.get('group_size'))} must be at least 1")
    return QuantArgs(bits, strategy=strategy, group_size=size, symmetric=symmetric, scale="fp16"), order


def _neighbours(columns: int, groups: int) -> Tensor:
    """The groups of columns that lie as they stand."""
    return torch.arange(columns) // (columns // groups)
