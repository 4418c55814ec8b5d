"""Block codecs against the public `gguf` package: equal to the bit, on random floats and on random bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from workbench.errors import UsageError
from workbench.gguf_file import BLOCK_TYPES, GGUFFile
from workbench.model import store
from workbench.model.gguf.codecs import CODECS, dequantize
from workbench.model.gguf.mapping import read_tensor

# Byte offsets of the float16 numbers in a block.
SCALES = {
    "F32": (),
    "F16": (0,),
    "BF16": (),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
QUANTIZABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def oracle(raw: np.ndarray, name: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(gguf.dequantize(raw, gguf.GGMLQuantizationType[name])))


def ours(raw: np.ndarray, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return dequantize(torch.from_numpy(np.ascontiguousarray(raw).view(np.uint8).copy()), name, shape)


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected.reshape(got.shape), rtol=0, atol=0, equal_nan=True)


def test_every_supported_type_has_a_codec_of_ggufs_size():
    assert set(CODECS) == set(BLOCK_TYPES) == set(SCALES)
    for name, block in BLOCK_TYPES.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (block.values, block.num_bytes)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("rows", [1, 3, 1100])
def test_random_bytes(name: str, rows: int):
    """Every bit pattern of the packed part; scales are any finite float16, subnormal, zero and negative included."""
    block, generator = BLOCK_TYPES[name], np.random.default_rng(rows)
    per_row = 2 if block.values > 1 else 40
    raw = generator.integers(0, 256, (rows, per_row, block.num_bytes), dtype=np.uint8)
    for offset in SCALES[name]:
        halves = generator.integers(0, 1 << 16, (rows, per_row), dtype=np.uint16)
        halves[(halves & 0x7C00) == 0x7C00] &= 0x83FF  # infinities and NaN become subnormal
        raw[..., offset : offset + 2] = halves[..., None].view(np.uint8)
    raw = raw.reshape(rows, -1)
    shape = (rows, per_row * block.values)
    got = ours(raw, name, shape)
    assert got.dtype == torch.float32 and got.shape == shape
    assert_same(got, oracle(raw, name))


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_random_floats(name: str):
    values = np.random.default_rng(0).standard_normal((24, 192)).astype(np.float32)
    values[3] = 0
    raw = gguf.quantize(values, gguf.GGMLQuantizationType[name])
    got = ours(raw, name, values.shape)
    assert_same(got, oracle(raw, name))
    # and the numbers mean what was stored: within half a step of the block's range
    assert (got - torch.from_numpy(values)).abs().max() < {"Q4": 0.4, "Q5": 0.2}.get(name[:2], 0.05)


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_the_result_does_not_depend_on_where_the_blocks_are_cut(name: str, monkeypatch: pytest.MonkeyPatch):
    raw = np.random.default_rng(1).integers(0, 60, (7, 3 * BLOCK_TYPES[name].num_bytes), dtype=np.uint8)
    shape = (7, 3 * BLOCK_TYPES[name].values)
    whole = ours(raw, name, shape)
    monkeypatch.setattr("workbench.model.gguf.codecs._CACHED_VALUES", 4 * BLOCK_TYPES[name].values)
    assert_same(ours(raw, name, shape), whole)


def test_refusals_name_the_type():
    with pytest.raises(UsageError, match=r"IQ4_NL is not supported.*Q4_1"):
        dequantize(torch.zeros(18, dtype=torch.uint8), "IQ4_NL", (1, 32))
    with pytest.raises(UsageError, match="19 bytes are not whole Q4_0 blocks"):
        dequantize(torch.zeros(19, dtype=torch.uint8), "Q4_0", (1, 32))


def test_requantizing_the_default_model_gives_its_bytes_back():
    """Its weights were rounded once; quantizing what we decode must find the very same blocks."""
    file = GGUFFile(store.locate("smollm2-135m"))
    for name, kind in (
        ("blk.0.attn_k.weight", "Q4_1"),
        ("blk.29.ffn_down.weight", "Q4_1"),
        ("token_embd.weight", "Q8_0"),
    ):
        info = file.tensors[name]
        assert info.type == kind
        rows = read_tensor(file, info)[:512].numpy()
        again = gguf.quantize(rows, gguf.GGMLQuantizationType[kind]).tobytes()
        assert again == bytes(file.bytes_of(info))[: len(again)]
