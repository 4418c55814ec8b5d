"""One quantized matrix in the files that hold such: written, read back, and its first word taken apart."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.reference.weights import BLOCK, GGUF_BYTES, gguf_weight, numbers, unpack
from workbench.config import EngineConfig
from workbench.errors import UsageError
from workbench.gguf_file import GGUFFile
from workbench.lab.table import Cell, Table
from workbench.model import store
from workbench.quant.codecs import CODECS, gguf
from workbench.quant.codecs.awq import ORDER
from workbench.quant.result import QuantizedWeight


class Stored(NamedTuple):
    """A matrix in one format."""

    format: str
    file_bytes: int
    tensor: str
    """Name and shape of the tensor that holds the numbers."""
    word: str
    """Its first 32 bits as a whole number in hexadecimal: the lowest nibble stands right."""
    holds: str
    """Whose numbers these are, lowest nibble first."""
    back: QuantizedWeight
    """What the format's codec reads."""


def stored(weight: QuantizedWeight, folder: Path) -> list[Stored]:
    """Writes ``weight``, 4 bits and symmetric, as compressed-tensors, GPTQ, AWQ and GGUF Q4_0; reads each back."""
    if weight.args.bits != 4 or weight.params.zero is not None:
        raise UsageError("only weights of 4 bits without zero points go into all four formats")
    found = []
    first = {
        "compressed-tensors": "inputs 0 1 2 3 4 5 6 7 of output 0",
        "gptq": "inputs 0 1 2 3 4 5 6 7 of output 0",
        "awq": f"outputs {' '.join(map(str, ORDER))} of input 0",
    }
    for name, kind in CODECS.items():
        codec, file = kind(weight.args), folder / f"{name}.safetensors"
        save_file(codec.encode(weight), str(file))
        tensors = load_file(str(file))
        holder = codec.ENDS[0]
        word = int(tensors[holder][0, 0])
        shape = f"{holder} {list(tensors[holder].shape)}"
        back = codec.decode(tensors)
        found.append(Stored(name, file.stat().st_size, shape, f"{word & 0xFFFFFFFF:08x}", first[name], back))
    data, whole = gguf.encode(weight, "Q4_0"), (weight.q.shape[0], weight.q.shape[1])
    word = int.from_bytes(bytes(data[0, 2:6].tolist()), "little")
    holds = "inputs 0 16 1 17 2 18 3 19 of output 0"
    back = gguf.decode(data, "Q4_0", whole)
    found.append(Stored("GGUF Q4_0", data.nbytes, f"blocks {list(data.shape)}", f"{word:08x}", holds, back))
    return found


def stored_table(files: list[Stored]) -> Table:
    """Where each format's first word lies, and whose numbers it holds."""
    rows: list[list[Cell | str | int]] = [[one.format, one.tensor, one.word, one.holds] for one in files]
    return Table(["format", "tensor", "first word", "nibbles, from the right"], rows)


class Block(NamedTuple):
    """Thirty-two weights as they lie in the model's own file."""

    tensor: str
    raw: bytes
    scale: float
    offset: float
    codes: list[int]
    values: Tensor
    """float32, by the reader that the engine uses."""


def model_block(tensor: str = "blk.0.attn_q.weight") -> Block:
    """The first block of a Q4_1 tensor of the default model's GGUF file. Raises UsageError for another model."""
    source = store.locate(EngineConfig().model)
    if source.suffix.lower() != ".gguf":
        raise UsageError(f"{EngineConfig().model} is no GGUF file: leave WORKBENCH_MODEL out")
    file = GGUFFile(source)
    info = file.tensors[tensor]
    if info.type != "Q4_1":
        raise UsageError(f"{tensor} is stored as {info.type}, not Q4_1")
    raw = bytes(file.bytes_of(info)[: GGUF_BYTES["q4_1"]])
    weight = gguf_weight(torch.tensor(list(raw), dtype=torch.uint8), "q4_1", (1, BLOCK))
    q, scale, offset = numbers(weight)
    assert offset is not None
    return Block(tensor, raw, float(scale), float(offset), q[0, 0].tolist(), unpack(weight)[0])
