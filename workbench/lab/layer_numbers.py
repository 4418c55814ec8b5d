"""The numbers of a real model: what the products of each layer are given while a text runs, and their weights.

Both come from the engine as it runs: inputs by standing in front of its products, weights by asking a product for that
of the unit matrix. Who stands there may also hand on something else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.errors import UsageError
from workbench.model.divergence import kl_divergence
from workbench.model.linear import Linear

if TYPE_CHECKING:
    from workbench.llm import LLM

Place = tuple[int, str]
"""A layer's number and the name of a product in it: ``qkv``, ``o``, ``gate_up`` or ``down``."""


def layer_inputs(llm: LLM, token_ids: Sequence[int]) -> dict[Place, Tensor]:
    """What every product of every layer is given for one text: float32 ``[tokens, inputs]`` on the CPU."""
    seen: dict[Place, Tensor] = {}

    def kept(place: Place, x: Tensor) -> Tensor:
        seen[place] = x.float().cpu().clone()  # the engine uses its buffers again
        return x

    with ExitStack() as stack:
        for place in _products(llm):
            stack.enter_context(changed_inputs(llm, place, partial(kept, place)))
        llm.runner.logits(list(token_ids))
    return seen


@contextmanager
def changed_inputs(llm: LLM, place: Place, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within it ``llm.runner.logits`` gives a product ``change(x)`` for its inputs x, in x's dtype.

    Steps of the engine, which are replayed, may know nothing of it. Raises UsageError as `layer_weight`.
    """
    part, name = _holder(llm, place), place[1]
    linear = getattr(part, name)

    def changed(x: Tensor) -> Tensor:
        product: Tensor = linear(change(x).to(x))
        return product

    setattr(part, name, changed)
    try:
        yield
    finally:
        setattr(part, name, linear)


def moved_by(llm: LLM, token_ids: Sequence[int], place: Place, change: Callable[[Tensor], Tensor]) -> float:
    """How far predictions move when one product's inputs are changed (`changed_inputs`): the mean KL of a text, in
    nats a token."""
    exact = llm.runner.logits(list(token_ids)).float().cpu().numpy()
    with changed_inputs(llm, place, change):
        return kl_divergence(exact, llm.runner.logits(list(token_ids)).float().cpu().numpy())


def layer_weight(llm: LLM, layer: int, product: str) -> Tensor:
    """The weights ``[outputs, inputs]`` of a product, float32 on the CPU, as the engine multiplies with them.

    Raises UsageError for a layer or a product that the model has not.
    """
    part = _holder(llm, (layer, product))
    width = layer_inputs(llm, [0])[layer, product].shape[1]
    bare: Linear = copy.copy(getattr(part, product))
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


def _holder(llm: LLM, place: Place) -> Any:
    found = _products(llm)
    if place not in found:
        names = ", ".join(sorted({name for _, name in found}))
        raise UsageError(f"layer {place[0]} has no product {place[1]!r}: layers 0 to {max(found)[0]} have {names}")
    return found[place]
