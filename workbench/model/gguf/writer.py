"""Writes GGUF files (version 3, little-endian): the head with room for every tensor first, then tensors as they come.

The way back from `workbench.gguf_file`, whose docstring tells the layout. No torch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from workbench.gguf_file import BLOCK_TYPES, DEFAULT_ALIGNMENT, MAGIC, TYPE_IDS

VERSION = 3
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64 = 4, 5, 6, 7, 8, 9, 10


class Planned(NamedTuple):
    """A tensor that will be written."""

    name: str
    type: str
    """A key of `workbench.gguf_file.BLOCK_TYPES`."""
    shape: tuple[int, ...]
    """Rows first."""

    @property
    def num_bytes(self) -> int:
        block = BLOCK_TYPES[self.type]
        return prod(self.shape) // block.values * block.num_bytes


class GGUFWriter:
    """A file whose tensors are put in one by one, in any order; it is whole when all of them were."""

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        tensors: Sequence[Planned],
        alignment: int = DEFAULT_ALIGNMENT,
    ) -> None:
        """metadata: in this order; bytes are values as they stand in a file (`GGUFFile.stored_value`). tensors: in the
        order in which they lie. A file that is there is replaced."""
        head = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
        for key, value in metadata.items():
            head += _text(key) + (value if isinstance(value, bytes) else stored(value))
        offset, places = 0, []
        for planned in tensors:
            head += _text(planned.name) + struct.pack("<I", len(planned.shape))
            head += struct.pack(f"<{len(planned.shape)}Q", *reversed(planned.shape))
            head += struct.pack("<IQ", TYPE_IDS[planned.type], offset)
            places.append(offset)
            offset += _up(planned.num_bytes, alignment)
        start = _up(len(head), alignment)
        self._left = {one.name: (start + at, one.num_bytes) for one, at in zip(tensors, places, strict=True)}
        self._file = path.open("w+b")
        self._file.write(head)
        self._file.truncate(start + offset)
        self._file.flush()

    def put(self, name: str, data: bytes | memoryview) -> None:
        """A tensor's bytes, once. Raises ValueError for a name that is not left and for bytes that do not fit."""
        if name not in self._left:
            raise ValueError(f"{name} was not planned, or was written before")
        at, size = self._left.pop(name)
        raw = memoryview(data).cast("B")
        if len(raw) != size:
            raise ValueError(f"{name} has {len(raw)} bytes where {size} were planned")
        self._file.seek(at)
        self._file.write(raw)
        self._file.flush()  # who reads the file before it is whole shall see what was put

    def close(self) -> None:
        """Raises ValueError if tensors are missing."""
        self._file.close()
        if self._left:
            raise ValueError(f"{len(self._left)} tensors were not written, the first of them {next(iter(self._left))}")


def stored(value: Any) -> bytes:
    """A metadata value with its type, as llama.cpp's converter chooses it: whole numbers are uint32 (in lists int32),
    floats float32. Raises ValueError for a value that has no place in a file."""
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value) if value < 1 << 32 else struct.pack("<IQ", _U64, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
    if isinstance(value, list) and all(isinstance(one, int) for one in value):
        return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _I32, len(value), *value)
    raise ValueError(f"metadata of {type(value).__name__} is not written")


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
