"""AutoAWQ's GEMM checkpoints: numbers of 4 bits along the outputs, eight to a word, in an order of their own.

===========  ============================================================================================
``qweight``  int32 ``[K, N / 8]``: nibble i of a word is output ``ORDER[i]`` of its eight, 0 … 15
``qzeros``   int32 ``[groups, N / 8]``, likewise; the zero itself
``scales``   float16 ``[groups, N]``
===========  ============================================================================================

A weight is ``(q − zero) · scale``. Source: AutoAWQ, ``modules/linear/gemm.py`` and ``utils/packing_utils.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.quant.args import QuantArgs
from workbench.quant.codecs.interface import (
    choice,
    group_args,
    half_scales,
    of_zeros,
    require_integers,
    require_matrix,
    require_shapes,
    require_tensors,
    zeros_of,
)
from workbench.quant.codecs.words import pack, unpack
from workbench.quant.result import QuantizedWeight

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_BACK = (0, 4, 1, 5, 2, 6, 3, 7)
_BITS, _EACH, _HALF = 4, 8, 8
_NO_INDEX = "an AWQ checkpoint has no g_idx for act-order 'group': take 'static' or 'none'"


@dataclass(frozen=True, slots=True)
class Awq:
    args: QuantArgs
    order: str | None = None
    """Not ``group``: there is no g_idx."""

    METHOD: ClassVar[str] = "awq"
    ENDS: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales")

    def __post_init__(self) -> None:
        require_integers(self.args, "an AWQ checkpoint", (_BITS,))
        if self.order == "group":
            raise UsageError(_NO_INDEX)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Awq:
        """Also of ``quant_config.json``, whose keys are ``w_bit`` and ``q_group_size``. Raises UsageError for layouts
        other than ``gemm``."""
        choice(config, "w_bit" if "w_bit" in config else "bits", (_BITS,), _BITS)
        version = str(config.get("version", "gemm")).lower()
        choice({"version": version}, "version", ("gemm",))
        symmetric = not choice(config, "zero_point", (True, False), True)
        return cls(group_args(_BITS, config, symmetric, "q_group_size" if "q_group_size" in config else "group_size"))

    def require_fit(self, rows: int, columns: int, name: str) -> None:
        self.args.block_size((rows, columns), name)
        if rows % _EACH:
            raise UsageError(f"{name}: its {rows} outputs are no whole words of {_EACH}, which an AWQ checkpoint "
                             "needs: write compressed-tensors")  # fmt: skip

    def encode(self, weight: QuantizedWeight, name: str = "weight") -> dict[str, Tensor]:
        if weight.group_of is not None:
            raise UsageError(f"{name}: {_NO_INDEX}")
        self.require_fit(*weight.q.shape, name)
        return {
            "qweight": _packed(weight.q.T.short() + _HALF),
            "qzeros": _packed(zeros_of(weight, self.args, name).T + _HALF),
            "scales": half_scales(weight, name).T.contiguous(),
        }

    def decode(self, tensors: Mapping[str, Tensor], name: str = "weight") -> QuantizedWeight:
        qweight, qzeros, scales = require_tensors(tensors, self.ENDS, name)
        require_matrix(qweight, f"{name}.qweight")
        columns, rows = len(qweight), qweight.shape[-1] * _EACH
        groups = self.args.num_blocks((rows, columns), name)[1]
        require_shapes(tensors, {"qzeros": (groups, rows // _EACH), "scales": (groups, rows)}, name)
        q, zero = ((_unpacked(words) - _HALF).T.to(torch.int8).contiguous() for words in (qweight, qzeros))
        return of_zeros(q, scales.T.float().contiguous(), zero, self.args)

    def config(self) -> dict[str, Any]:
        return {
            "quant_method": self.METHOD,
            "bits": _BITS,
            "group_size": self.args.group_size or -1,
            "zero_point": not self.args.symmetric,
            "version": "gemm",
            "modules_to_not_convert": ["lm_head"],
        }


def _packed(numbers: Tensor) -> Tensor:
    """``[rows, N]`` to words, the outputs of each in `ORDER`."""
    return pack(numbers.reshape(len(numbers), -1, _EACH)[..., list(ORDER)].flatten(1), _BITS)


def _unpacked(words: Tensor) -> Tensor:
    numbers = unpack(words, _BITS, words.shape[-1] * _EACH)
    return numbers.reshape(len(words), -1, _EACH)[..., list(_BACK)].flatten(1)
