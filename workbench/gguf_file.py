"""The GGUF container: metadata, a table of tensors and their bytes, read without torch and without copying.

Layout (little-endian): magic, version, counts, key/value pairs, tensor table, padding, tensor data. It lies at the
bottom of the house because the tokenizer and the weights both live in this one file.
Source: the GGUF specification in ggml's documentation (versions 2 and 3 differ only in allowing big-endian files).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import UsageError, WorkbenchError

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4

# Value type id -> struct code. 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class BlockType(NamedTuple):
    """A ggml storage type: ``values`` numbers share one block of ``num_bytes`` bytes."""

    name: str
    values: int
    num_bytes: int


_BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
TYPE_IDS: dict[str, int] = {block.name: type_id for type_id, block in _BLOCK_TYPES.items()}
BLOCK_TYPES: dict[str, BlockType] = {block.name: block for block in _BLOCK_TYPES.values()}
"""The storage types that can be read, by name."""

# Known by name, so that a refusal can name them.
_REFUSED = {
    **{9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S"},
    **{22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M"},
    **{34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"},
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    type: str
    """Name of the storage type, ``Q4_1`` for one; a key of `BLOCK_TYPES`, else the tensor cannot be read."""
    shape: tuple[int, ...]
    """Rows first, as torch has it (the file stores the fastest dimension first)."""
    offset: int
    """Bytes from the start of the file."""

    @property
    def block(self) -> BlockType:
        """Raises UsageError for a storage type that is not supported, naming it."""
        if self.type not in BLOCK_TYPES:
            known = ", ".join(BLOCK_TYPES)
            raise UsageError(f"tensor {self.name} is stored as {self.type}, which is not supported; supported: {known}")
        return BLOCK_TYPES[self.type]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) // self.block.values * self.block.num_bytes


class GGUFFile:
    """A GGUF file, mapped into memory; tensor bytes are read from disk only when touched.

    Args:
        path: a GGUF v2 or v3 file, in one part.

    Raises:
        UsageError: not GGUF, an unsupported version, byte order or storage type, or one shard of several.
        WorkbenchError: missing, unreadable, truncated or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.version = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._pairs: dict[str, tuple[int, int]] = {}
        try:
            with self.path.open("rb") as file:
                # A private (copy-on-write) mapping: torch wants writable buffers, and the file must never change.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError:
            raise WorkbenchError(f"{self.path} is empty: fetch or copy it again") from None
        except OSError as error:
            raise WorkbenchError(f"cannot read {self.path}: {error.strerror}") from error
        self._position = 0
        self._parse()

    def bytes_of(self, info: TensorInfo) -> memoryview:
        """The tensor's stored bytes, not copied. The view keeps the mapping alive."""
        return memoryview(self._data)[info.offset : info.offset + info.num_bytes]

    def stored_value(self, key: str) -> bytes:
        """A metadata value as it stands in the file, its type in front: what a copy of the file must hold."""
        begin, end = self._pairs[key]
        return bytes(self._data[begin:end])

    def stored(self) -> dict[str, dict[str, int]]:
        """Storage type -> number of tensors and their bytes (0 for a type whose block size is not known here)."""
        sums: dict[str, dict[str, int]] = {}
        for info in self.tensors.values():
            row = sums.setdefault(info.type, {"tensors": 0, "bytes": 0})
            row["tensors"] += 1
            row["bytes"] += info.num_bytes if info.type in BLOCK_TYPES else 0
        return sums

    def _parse(self) -> None:
        if self._data[:4] != MAGIC:
            raise UsageError(f"{self.path} is not a GGUF file: it starts with {bytes(self._data[:4])!r}, not {MAGIC!r}")
        self._position = 4
        self.version = self._scalar("I")
        if self.version & 0xFFFF == 0:
            raise UsageError(f"{self.path} is a big-endian GGUF file; only little-endian files are supported")
        if self.version not in (2, 3):
            raise UsageError(f"{self.path} is GGUF version {self.version}; versions 2 and 3 are supported")
        num_tensors, num_pairs = self._scalar("Q"), self._scalar("Q")
        for _ in range(num_pairs):
            key, begin = self._string(), self._position
            self.metadata[key] = self._value(self._scalar("I"))
            self._pairs[key] = begin, self._position
        if (parts := self.metadata.get("split.count", 0)) > 1:
            raise UsageError(f"{self.path} is one of {parts} parts; merge them into one file first")
        infos = [self._tensor_info() for _ in range(num_tensors)]
        self._place(infos)

    def _place(self, infos: list[TensorInfo]) -> None:
        """Turns offsets within the data section into offsets within the file, and checks that they fit."""
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if alignment < 1 or alignment & (alignment - 1):
            raise WorkbenchError(f"{self.path} is damaged: alignment {alignment} is not a power of two")
        start = -(-self._position // alignment) * alignment
        for info in infos:
            if info.name in self.tensors:
                raise WorkbenchError(f"{self.path} is damaged: tensor {info.name} appears twice")
            if info.offset % alignment:
                raise WorkbenchError(f"{self.path} is damaged: tensor {info.name} is not aligned to {alignment} bytes")
            placed = TensorInfo(info.name, info.type, info.shape, start + info.offset)
            if placed.type in BLOCK_TYPES:
                if placed.shape[-1] % placed.block.values:
                    raise WorkbenchError(
                        f"{self.path} is damaged: rows of {info.name} hold {placed.shape[-1]} values, "
                        f"not a multiple of {placed.block.values} ({info.type})"
                    )
                if placed.offset + placed.num_bytes > len(self._data):
                    raise self._truncated(f"tensor {info.name} ends at byte {placed.offset + placed.num_bytes}")
            self.tensors[info.name] = placed

    def _tensor_info(self) -> TensorInfo:
        name = self._string()
        num_dims = self._scalar("I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise WorkbenchError(f"{self.path} is damaged: tensor {name} has {num_dims} dimensions, 1 to 4 are allowed")
        dims = struct.unpack(f"<{num_dims}Q", self._take(8 * num_dims))
        type_id = self._scalar("I")
        block = _BLOCK_TYPES.get(type_id)
        type_name = block.name if block else _REFUSED.get(type_id, f"type {type_id}")
        return TensorInfo(name, type_name, tuple(reversed(dims)), self._scalar("Q"))

    def _value(self, type_id: int) -> Any:
        if type_id in _SCALARS:
            return self._scalar(_SCALARS[type_id])
        if type_id == _STRING:
            return self._string()
        if type_id != _ARRAY:
            raise WorkbenchError(f"{self.path} is damaged: unknown metadata type {type_id} at byte {self._position}")
        item_type, length = self._scalar("I"), self._scalar("Q")
        if item_type in _SCALARS:
            code = _SCALARS[item_type]
            raw = self._take(length * struct.calcsize(f"<{code}"))
            return list(struct.unpack(f"<{length}{code}", raw))
        if item_type == _STRING:
            return self._strings(length)
        return [self._value(item_type) for _ in range(length)]

    def _scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]

    def _string(self) -> str:
        raw = self._take(self._scalar("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise WorkbenchError(f"{self.path} is damaged: text before byte {self._position} is not UTF-8") from error

    def _strings(self, count: int) -> list[str]:
        """An array of texts. Vocabularies are 100 000 of them, so this loop is written for speed."""
        data, position, size, found = self._data, self._position, len(self._data), []
        length_at = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                start = position + 8
                position = start + length_at(data, position)[0]
                if position > size:
                    raise self._truncated(f"a text ends at byte {position}")
                found.append(data[start:position].decode("utf-8"))
        except struct.error:
            raise self._truncated(f"a text starts at byte {position}") from None
        except UnicodeDecodeError as error:
            raise WorkbenchError(f"{self.path} is damaged: text before byte {position} is not UTF-8") from error
        self._position = position
        return found

    def _take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise self._truncated(f"a field ends at byte {end}")
        raw = self._data[self._position : end]
        self._position = end
        return raw

    def _truncated(self, what: str) -> WorkbenchError:
        return WorkbenchError(
            f"{self.path} is truncated: {what}, the file at {len(self._data)}; fetch or copy it again"
        )


def eos_token_ids(metadata: dict[str, Any]) -> tuple[int, ...]:
    """Tokens that end a text: end of sequence, of turn and of message, as far as the file names them.

    Files from before there was an end-of-turn key name it only in the vocabulary; control tokens with a well-known
    spelling are then taken, as llama.cpp does.
    """
    prefix = "tokenizer.ggml."
    found = [metadata.get(f"{prefix}{key}") for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    if found[1] is None:
        control = 3
        kinds = metadata.get(f"{prefix}token_type", [])
        spelled = zip(metadata.get(f"{prefix}tokens", []), kinds, strict=False)
        found += [i for i, (text, kind) in enumerate(spelled) if kind == control and text in _END_OF_TURN]
    return tuple(dict.fromkeys(i for i in found if i is not None))


_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
