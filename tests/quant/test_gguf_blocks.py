"""GGUF's blocks: ggml's bytes from floats, the file's own bytes again, and the canonical form there and back."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from kernels.reference.weights import gguf_weight, unpack
from tests.quant.measured import drawn
from tests.quant.written_words import random_weight
from workbench.errors import UsageError
from workbench.gguf_file import GGUFFile
from workbench.model import store
from workbench.model.gguf.mapping import read_tensor
from workbench.quant.algorithms import rtn
from workbench.quant.args import QuantArgs
from workbench.quant.codecs import CODECS
from workbench.quant.codecs.gguf import TYPES, GgufBlocks, decode, encode, quantize_blocks
from workbench.quant.core import QParams
from workbench.quant.result import QuantizedWeight


def back(data: torch.Tensor, kind: str, shape: tuple[int, int]) -> torch.Tensor:
    return unpack(gguf_weight(data, kind.lower(), shape))


@pytest.mark.parametrize("kind", TYPES)
def test_floats_become_the_bytes_that_the_public_package_makes(kind):
    x = drawn(64, 96) * torch.logspace(-6, 4, 64)[:, None]
    x[0], x[1], x[2, :32] = 0, 1.5, -0.0
    x[3, :4] = torch.tensor([127, 0.5, 1.5, -2.5])  # halves between two numbers
    x[3, 4:] = 0
    theirs = gguf.quants.quantize(x.numpy(), gguf.GGMLQuantizationType[kind])
    assert np.array_equal(quantize_blocks(x, kind).numpy(), theirs)


def tensors_of_default_model(every: bool):
    file = GGUFFile(store.locate("smollm2-135m"))
    for info in file.tensors.values():
        if len(info.shape) == 2 and (every or info.name.startswith("blk.7.")):
            yield info, torch.frombuffer(bytearray(file.bytes_of(info)), dtype=torch.uint8), read_tensor(file, info)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_default_model_gives_its_own_bytes_again(every):
    """Q4_1 forgets nothing of what Q4_1 has made; so of this model a Q4_1 is no result."""
    kinds = []
    for info, stored, floats in tensors_of_default_model(every):
        assert torch.equal(quantize_blocks(floats, info.block.name, info.name).flatten(), stored), info.name
        kinds.append(info.block.name)
    assert len(kinds) == (211 if every else 7) and set(kinds) == ({"Q4_1", "Q8_0"} if every else {"Q4_1"})


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8)])
@pytest.mark.parametrize("group", [32, 64, -1])
def test_one_weight_means_the_same_as_in_the_other_formats(kind, bits, group):
    weight = random_weight(16, 128, group, bits=bits, symmetric=True)
    found = back(encode(weight, kind), kind, (16, 128))
    assert torch.equal(found, weight.dequantize())
    again = decode(encode(weight, kind), kind, (16, 128))
    assert torch.equal(again.q, weight.q) and torch.equal(again.dequantize(), weight.dequantize())
    for method, codec in CODECS.items():
        if method != "awq" or bits == 4:
            assert torch.equal(codec(weight.args).decode(codec(weight.args).encode(weight)).dequantize(), found), method


def test_whole_zero_points_are_offsets_of_q4_1():
    weight = random_weight(16, 128, 64)
    coarse = QParams((weight.params.scale * 64).round() / 64, weight.params.zero)  # few digits: every offset fits
    weight = QuantizedWeight(weight.q, coarse, weight.args)
    data = encode(weight, "Q4_1")
    assert torch.equal(back(data, "Q4_1", (16, 128)), weight.dequantize())
    again = decode(data, "Q4_1", (16, 128))
    assert torch.equal(again.dequantize(), weight.dequantize()) and torch.equal(again.q, weight.q)
    codec = CODECS["awq"](again.args)
    assert torch.equal(codec.decode(codec.encode(again)).dequantize(), weight.dequantize())


@pytest.mark.parametrize("kind", TYPES)
def test_what_algorithms_choose_for_blocks_has_a_place_in_them(kind):
    """Every offset of Q4_1 is a whole number of scales and a float16, from the smallest scales to the largest."""
    x = drawn(64, 96) * torch.logspace(-9, 3, 64)[:, None] + torch.logspace(-9, 3, 64)[:, None]
    x[5] = 0
    codec = GgufBlocks(kind)
    weight, _ = rtn(x, codec.args)
    found = codec.decode(codec.encode(weight))
    assert torch.equal(found.dequantize(), weight.dequantize())
    assert torch.equal(back(codec.encode(weight)["blocks"], kind, (64, 96)), weight.dequantize())
    if kind == "Q4_1":
        with pytest.raises(UsageError, match="its offsets need more"):
            encode(rtn(x, replace(codec.args, scale="fp16"))[0], kind)


def test_what_a_type_cannot_say_is_refused():
    weight = random_weight(8, 64)
    for kind, named in (("Q4_0", "zero points.*Q4_1"), ("Q8_0", "4 bits and Q8_0 of 8"), ("Q4_K", "'Q4_K' is not")):
        with pytest.raises(UsageError, match=named):
            encode(weight, kind, "q_proj")
    with pytest.raises(UsageError, match="q_proj: its offsets need more than float16"):
        encode(weight, "Q4_1", "q_proj")
    with pytest.raises(UsageError, match="q_proj: its groups are no whole blocks"):
        encode(random_weight(8, 64, 16), "Q4_1", "q_proj")
    wide = QuantizedWeight(weight.q, QParams(weight.params.scale + 1e-5, None), QuantArgs(4, group_size=32))
    with pytest.raises(UsageError, match="q_proj: its scales need more"):
        encode(wide, "Q4_0", "q_proj")
    with pytest.raises(UsageError, match="q_proj: rows of 48 are no whole Q8_0 blocks"):
        quantize_blocks(torch.zeros(4, 48), "Q8_0", "q_proj")
    with pytest.raises(ValueError, match="q_proj: there are infinities"):
        quantize_blocks(torch.full((4, 32), torch.inf), "Q8_0", "q_proj")
    with pytest.raises(UsageError, match="no whole zero points"):
        decode(quantize_blocks(drawn(8, 64), "Q4_1"), "Q4_1", (8, 64))
