"""Weights in fewer bits: which scheme keeps what in which format.

W8 and W4 say how weights are stored, A16 and A8 what activations are rounded to where they meet them: whole numbers of
16 or 8 bits, one scale a token. The head (and an embedding tied to it) stays in 8 bits and always meets 16-bit
activations; norms, biases, routers of experts and the matrices that latents are multiplied out with stay floats.

On a GPU A16 is what activations are anyway, bfloat16 or float16, the numbers of 4 bits have a whole zero point
(``uint4``), and what is not of 4 bits, head and embedding included, stays floats.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.reference.weights import BLOCK, Weight, pack
from kernels.triton import launch
from workbench.errors import UsageError
from workbench.model.config import QUANT_METHODS
from workbench.model.layer_weights import Weights
from workbench.model.weights.expected import EMBEDDING, HEAD, stays_floats


class Scheme(NamedTuple):
    body: str
    """Format of the layers' matrices; empty: as the file stores them."""
    group: int
    activation_bits: int
    meaning: str


SCHEMES = {
    "w8a16": Scheme("q8_0", BLOCK, 16, "8-bit weights with a scale for each 32, 16-bit activations"),
    "w4a16": Scheme("int4", BLOCK, 16, "4-bit weights with scale and offset for each 32, 16-bit activations"),
    "w4a16-g64": Scheme("int4", 64, 16, "4-bit weights with scale and offset for each 64, 16-bit activations"),
    "w8a8-int8": Scheme("int8", 0, 8, "8-bit weights with a scale a row, 8-bit activations"),
    "w4a8": Scheme("int4", BLOCK, 8, "4-bit weights with scale and offset for each 32, 8-bit activations"),
    "gguf": Scheme("", BLOCK, 16, "the GGUF file's own blocks, 16-bit activations"),
    **{
        method: Scheme("", 0, 16, f"the {method} checkpoint's own numbers, 16-bit activations")
        for method in QUANT_METHODS
    },
}
ON_GPU = ("w4a16", "w4a16-g64", *QUANT_METHODS)
"""Those that a GPU computes in."""
FROM_FLOATS = tuple(name for name, scheme in SCHEMES.items() if scheme.body)
"""Those that can be made of any weights; the others are what a file holds."""


def quantize(weights: Weights, scheme: str) -> dict[str, str]:
    """Packs every matrix in place; those that are packed already stay. Returns the format of each matrix.

    A matrix whose rows are no whole groups of 32 becomes ``int8``; on a GPU it stays floats.
    """
    formats: dict[str, str] = {}
    for name, weight in list(weights.items()):
        if isinstance(weight, torch.Tensor) and weight.dim() == 2 and SCHEMES[scheme].body and not stays_floats(name):
            make = _packed_for_gpu if launch.on_gpu(weight.device) else _packed
            weights[name] = weight = make(name, weight, SCHEMES[scheme])
        if isinstance(weight, Weight):
            formats[name] = weight.format
        elif weight.dim() == 2:
            formats[name] = str(weight.dtype).removeprefix("torch.")
    return formats


def _packed(name: str, matrix: torch.Tensor, scheme: Scheme) -> Weight:
    wanted = scheme.body
    if name in (EMBEDDING, HEAD) and wanted == "int4":
        wanted = "q8_0"
    if wanted != "int8" and matrix.shape[1] % max(scheme.group, BLOCK):
        wanted = "int8"
    return pack(matrix, wanted, scheme.group)


def _packed_for_gpu(name: str, matrix: torch.Tensor, scheme: Scheme) -> torch.Tensor | Weight:
    if name in (EMBEDDING, HEAD) or matrix.shape[1] % scheme.group:
        return matrix
    return pack(matrix, "uint4", scheme.group)


def require_scheme(scheme: str, stored: str | None, dtype: str, device: torch.device) -> None:
    """Raises UsageError, with what to do, where a scheme cannot be had. stored: the scheme of the file itself."""
    told = f"quantization={scheme!r}"
    if reason := refusal(scheme, dtype, device):
        raise UsageError(f"{told} {reason}")
    if scheme in SCHEMES and scheme not in FROM_FLOATS and scheme != stored:
        kind = "floats" if stored is None else stored
        raise UsageError(
            f"{told} computes with {SCHEMES[scheme].meaning.partition(',')[0]} and the model's weights are {kind}: "
            "use 'auto', 'w8a16' or 'w4a16'"
        )


def refusal(scheme: str, dtype: str, device: torch.device) -> str | None:
    """Why a scheme cannot be had there, whatever the weights are, with what to do; None where nothing is in the way."""
    from kernels.cpu.build import cannot_run

    if launch.on_gpu(device):
        if scheme not in ON_GPU:
            return f"runs on CPUs only so far and the model is on {device}: use {', '.join(ON_GPU)} or none"
        reason = launch.cannot_run(device)
        return f"needs Triton on a GPU: {reason}; use 'none'" if reason else None
    if reason := cannot_run():
        return f"needs the C++ kernels, and they cannot be built: {reason}; use 'none'"
    if dtype not in ("auto", "float32"):
        return f"and dtype={dtype!r} both say how weights are kept: leave one of them out"
    return None
