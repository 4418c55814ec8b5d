"""The first word of each format, taken apart by hand; the same numbers come back from all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workbench.errors import UsageError
from workbench.lab.checkpoint_bytes import model_block, stored, stored_table
from workbench.quant.algorithms import rtn
from workbench.quant.args import QuantArgs

PLAIN = QuantArgs(4, group_size=64, scale="fp16")


def test_each_nibble_is_where_the_table_says(tmp_path: Path) -> None:
    made, _ = rtn(torch.randn(16, 128, generator=torch.Generator().manual_seed(3)), PLAIN)
    files = stored(made, tmp_path)
    assert [one.format for one in files] == ["compressed-tensors", "gptq", "awq", "GGUF Q4_0"]
    for one in files:
        side, *places, _, _, end = one.holds.split()
        numbers = [int(place) for place in places]
        assert len(numbers) == 8 and int(end) == 0
        codes = made.q[0, numbers] if side == "inputs" else made.q[numbers, 0]
        assert [int(digit, 16) for digit in reversed(one.word)] == [int(code) + 8 for code in codes], one.format
        assert torch.equal(one.back.dequantize(), made.dequantize())
    assert files[0].word == files[1].word != files[2].word
    assert [row[2] for row in stored_table(files).rows] == [one.word for one in files]
    assert (tmp_path / "awq.safetensors").stat().st_size == files[2].file_bytes


def test_what_does_not_go_into_all_formats_is_refused(tmp_path: Path) -> None:
    weight = torch.randn(16, 64)
    for args in (QuantArgs(8, group_size=64, scale="fp16"), QuantArgs(4, group_size=64, symmetric=False)):
        with pytest.raises(UsageError, match="without zero points"):
            stored(rtn(weight, args)[0], tmp_path)


@pytest.mark.slow
def test_a_block_of_the_models_own_file() -> None:
    block = model_block()
    assert len(block.raw) == 20 and len(block.codes) == 32
    scale, offset = torch.frombuffer(bytearray(block.raw[:4]), dtype=torch.float16).tolist()
    assert (scale, offset) == (block.scale, block.offset)
    by_hand = [byte & 15 for byte in block.raw[4:]] + [byte >> 4 for byte in block.raw[4:]]
    assert block.codes == by_hand
    assert block.values.tolist() == [code * scale + offset for code in by_hand]
    with pytest.raises(UsageError, match="not Q4_1"):
        model_block("token_embd.weight")
