"""A model as a GGUF file: matrices of layers in one type, embedding and head in Q8_0, the rest as float32.

A model that comes out of a GGUF file gives its metadata on as they stand there, and its tensors keep their order; one
out of a folder has its configuration and tokenizer told in GGUF's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.compress.calibrate import is_matrix
from workbench.compress.checkpoint import SCRATCH
from workbench.gguf_file import DEFAULT_ALIGNMENT, GGUFFile
from workbench.model.config import ModelConfig
from workbench.model.gguf.mapping import INTERLEAVED, gguf_name, hf_name, permute
from workbench.model.gguf.metadata import ROPE_FREQS, metadata_of, require_said, rope_divisors
from workbench.model.gguf.writer import GGUFWriter, Planned
from workbench.model.weights.expected import EMBEDDING, HEAD
from workbench.quant.codecs.gguf import quantize_blocks
from workbench.text.gguf_metadata import tokenizer_metadata
from workbench.text.tokenizer import Tokenizer

FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7}
"""``general.file_type``, llama.cpp's number for files that hold mostly this."""
HEAD_TYPE = "Q8_0"
_FILE_TYPE, _VERSION = "general.file_type", "general.quantization_version"


class GGUFOutput:
    """A file that takes tensors by their Hugging Face names; it has its name only when it is whole."""

    def __init__(
        self,
        path: Path,
        source: Path,
        config: ModelConfig,
        shapes: Mapping[str, tuple[int, ...]],
        tokenizer: Tokenizer | None,
        type_name: str,
    ) -> None:
        """shapes: of all tensors, by their names. Raises UsageError for a model or a tokenizer that a GGUF file does
        not hold, by what is lost."""
        self.path, self._scratch, self._type = path, path.with_suffix(SCRATCH), type_name
        given = GGUFFile(source) if source.suffix.lower() == ".gguf" else None
        metadata, arch, alignment = gguf_metadata(source, config, tokenizer)
        metadata[_FILE_TYPE] = FILE_TYPES[type_name]
        metadata.setdefault(_VERSION, 2)
        divisors = rope_divisors(config)
        order = list(shapes)
        if given is not None:  # a head that the file stores though it is tied is not written again
            order = [name for name in map(_hf_name, given.tensors) if name in shapes]
        planned = [Planned(gguf_name(name), self.type_of(name), shapes[name]) for name in order]
        if divisors is not None:
            planned.insert(0, Planned(ROPE_FREQS, "F32", (len(divisors),)))
        self._heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads} if arch in INTERLEAVED else {}
        self._writer = GGUFWriter(self._scratch, metadata, planned, alignment)
        try:
            if divisors is not None:
                self._writer.put(ROPE_FREQS, torch.tensor(divisors, dtype=torch.float32).numpy().data)
            require_said(GGUFFile(self._scratch), config)
        except BaseException:
            self.drop()
            raise

    def type_of(self, name: str) -> str:
        """The storage type of a tensor."""
        if name in (EMBEDDING, HEAD):
            return HEAD_TYPE
        return self._type if is_matrix(name) else "F32"

    def put(self, name: str, tensor: Tensor) -> None:
        """A tensor as floats, which are rounded as ggml rounds; or the bytes of its blocks, uint8 ``[N, bytes]``."""
        kind = self.type_of(name)
        if tensor.dtype != torch.uint8:
            tensor = tensor.float() if kind == "F32" else quantize_blocks(tensor, kind, name)
        ours = gguf_name(name)
        if heads := self._heads.get(ours.split(".")[-2]):
            tensor = permute(tensor, heads)
        self._writer.put(ours, tensor.contiguous().numpy().data)

    def close(self) -> int:
        """Gives the file its name and returns its bytes."""
        self._writer.close()
        self._scratch.replace(self.path)
        return self.path.stat().st_size

    def drop(self) -> None:
        """Takes back a file that will not be whole."""
        self._scratch.unlink(missing_ok=True)


def gguf_metadata(source: Path, config: ModelConfig, tokenizer: Tokenizer | None) -> tuple[dict[str, Any], str, int]:
    """A file's metadata for a model in ``source``, its architecture and its alignment. Raises UsageError for a
    configuration or a tokenizer that GGUF has no words for."""
    if source.suffix.lower() == ".gguf":
        given = GGUFFile(source)
        kept: dict[str, Any] = {key: given.stored_value(key) for key in given.metadata}
        alignment = given.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        return kept, given.metadata["general.architecture"], alignment
    metadata = metadata_of(config, source.name)
    if tokenizer is not None:
        metadata |= tokenizer_metadata(tokenizer, config.vocab_size)
    return metadata, metadata["general.architecture"], DEFAULT_ALIGNMENT


def _hf_name(name: str) -> str:
    return "" if name == ROPE_FREQS else hf_name(name)
