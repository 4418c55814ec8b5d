"""The numbers of a real model: what the products of each layer are given while a text runs, and their weights.

Both come from the engine as it runs: inputs by listening in front of its products, weights by asking a product for that
of the unit matrix.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.model.linear import Linear

if TYPE_CHECKING:
    from workbench.llm import LLM

Place = tuple[int, str]
"""A layer's number and the name of a product in it: ``qkv``, ``o``, ``gate_up`` or ``down``."""


def layer_inputs(llm: LLM, token_ids: Sequence[int]) -> dict[Place, Tensor]:
    """What every product of every layer is given for one text: float32 ``[tokens, inputs]`` on the CPU."""
    seen: dict[Place, Tensor] = {}
    with ExitStack() as stack:
        for place, part in _products(llm).items():
            stack.enter_context(_listening(part, place, seen))
        llm.runner.logits(list(token_ids))
    return seen


def layer_weight(llm: LLM, layer: int, product: str) -> Tensor:
    """The weights ``[outputs, inputs]`` of a product, float32 on the CPU, as the engine multiplies with them.

    Raises UsageError for a layer or a product that the model has not.
    """
    found = _products(llm)
    if (layer, product) not in found:
        names = ", ".join(sorted({name for _, name in found}))
        raise UsageError(f"layer {layer!r} has no product {product!r}: layers 0 to {max(found)[0]} have {names}")
    width = layer_inputs(llm, [0])[layer, product].shape[1]
    bare: Linear = copy.copy(getattr(found[layer, product], product))
    bare.bias = None
    unit = torch.eye(width, dtype=llm.runner.decoder.dtype, device=llm.runner.decoder.device)
    return bare(unit).T.float().cpu().contiguous()


def _products(llm: LLM) -> dict[Place, Any]:
    """Who holds each product."""
    return {
        (number, name): part
        for number, layer in enumerate(llm.runner.decoder.layers)
        for part in (layer.attention, layer.mlp)
        for name, value in vars(part).items()
        if isinstance(value, Linear)
    }


@contextmanager
def _listening(part: Any, place: Place, seen: dict[Place, Tensor]) -> Iterator[None]:
    linear = getattr(part, place[1])

    def listen(x: Tensor) -> Tensor:
        seen[place] = x.float().cpu().clone()  # the engine uses its buffers again
        product: Tensor = linear(x)
        return product

    setattr(part, place[1], listen)
    try:
        yield
    finally:
        setattr(part, place[1], linear)
