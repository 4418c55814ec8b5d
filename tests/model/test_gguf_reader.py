"""The container: the same contents as the public `gguf` package reads, and clear words for broken files."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from workbench.errors import UsageError, WorkbenchError
from workbench.gguf_file import GGUFFile, eos_token_ids
from workbench.model import store


def write(path: Path, alignment: int | None = None) -> Path:
    """A small file with every kind of metadata value."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -2_000_000_000)
    writer.add_uint64("a.u64", 1 << 63)
    writer.add_int64("a.i64", -(1 << 62))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.yes", True)
    writer.add_string("a.text", "안녕 😀")
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.texts", ["Ġt", "", "한"])
    writer.add_tensor("odd", np.arange(15, dtype=np.float32).reshape(3, 5))
    writer.add_tensor("half", np.arange(6, dtype=np.float16).reshape(1, 2, 3))
    rows = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    kind = gguf.GGMLQuantizationType.Q5_1
    writer.add_tensor("packed", gguf.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_agrees(path: Path) -> None:
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    own_fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(own_fields)
    for name, field in own_fields.items():
        assert ours.metadata[name] == field.contents(), name
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert (info.type, info.offset) == (tensor.tensor_type.name, tensor.data_offset)
        assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert bytes(ours.bytes_of(info)) == tensor.data.tobytes(), tensor.name


@pytest.mark.parametrize("alignment", [None, 8, 256])
def test_agrees_with_the_gguf_package(tmp_path: Path, alignment: int | None):
    assert_agrees(write(tmp_path / "small.gguf", alignment))


@pytest.mark.slow  # the gguf package takes seconds to index 98 000 strings
def test_agrees_on_the_default_model():
    path = store.locate("smollm2-135m")
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    assert len(ours.tensors) == len(theirs.tensors) == 272
    for tensor in theirs.tensors[::20]:
        assert bytes(ours.bytes_of(ours.tensors[tensor.name])) == tensor.data.tobytes()
    for key in ("llama.rope.freq_base", "tokenizer.ggml.pre", "tokenizer.chat_template", "tokenizer.ggml.merges"):
        assert ours.metadata[key] == theirs.fields[key].contents()


def test_version_2_is_read(tmp_path: Path):
    path = write(tmp_path / "small.gguf")
    path.write_bytes(path.read_bytes()[:4] + struct.pack("<I", 2) + path.read_bytes()[8:])
    assert GGUFFile(path).version == 2 and len(GGUFFile(path).tensors) == 3


def test_reading_never_changes_the_file(tmp_path: Path):
    path = write(tmp_path / "small.gguf")
    before, file = path.read_bytes(), GGUFFile(path)
    file.bytes_of(file.tensors["odd"])[:] = bytes(60)
    assert path.read_bytes() == before


# One key, "k", whose value is an array of texts.
TEXTS = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<II", 9, 8)


@pytest.mark.parametrize(
    ("head", "error", "words"),
    [
        (b"", WorkbenchError, "is empty"),
        (b"PK\x03\x04....", UsageError, "not a GGUF file.*PK"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), UsageError, "version 1; versions 2 and 3"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), UsageError, "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), WorkbenchError, "truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), WorkbenchError, "truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77), WorkbenchError, "metadata type 77"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + bytes(64), WorkbenchError, "not UTF-8"),
        (TEXTS + struct.pack("<QQ", 1, 1) + b"\xff", WorkbenchError, "not UTF-8"),
        (TEXTS + struct.pack("<QQ", 2, 1) + b"a", WorkbenchError, "truncated: a text starts"),
        (TEXTS + struct.pack("<QQ", 1, 9) + b"a", WorkbenchError, "truncated: a text ends"),
    ],
)
def test_broken_heads(tmp_path: Path, head: bytes, error: type[Exception], words: str):
    path = tmp_path / "broken.gguf"
    path.write_bytes(head)
    with pytest.raises(error, match=words):
        GGUFFile(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path):
    whole = write(tmp_path / "small.gguf").read_bytes()
    file = GGUFFile(tmp_path / "small.gguf")
    end = max(info.offset + info.num_bytes for info in file.tensors.values())
    path = tmp_path / "cut.gguf"
    for length in range(1, end, 7):
        path.write_bytes(whole[:length])
        with pytest.raises((WorkbenchError, UsageError), match=r"truncated|not a GGUF file"):
            GGUFFile(path)


def tensor_file(
    path: Path, type_id: int, shape: tuple[int, ...] = (32, 2), offset: int = 0, name: bytes = b"w"
) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name
    head += struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", type_id, offset)
    path.write_bytes(head + bytes(4096))
    return path


@pytest.mark.parametrize(("type_id", "word"), [(20, "IQ4_NL"), (39, "MXFP4"), (99, "type 99")])
def test_an_unsupported_type_is_refused_by_name_when_the_tensor_is_read(tmp_path: Path, type_id: int, word: str):
    file = GGUFFile(tensor_file(tmp_path / "t.gguf", type_id))
    assert file.stored() == {word: {"tensors": 1, "bytes": 0}}
    with pytest.raises(UsageError, match=f"tensor w is stored as {word}, which is not supported"):
        file.bytes_of(file.tensors["w"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": (33, 2)}, "33 values, not a multiple of 32"),
        ({"shape": (1,) * 5}, "5 dimensions"),
        ({"offset": 3}, "not aligned"),
        ({"offset": 1 << 20}, "truncated: tensor w"),
    ],
)
def test_damaged_tensor_tables(tmp_path: Path, change: dict[str, object], words: str):
    with pytest.raises(WorkbenchError, match=words):
        GGUFFile(tensor_file(tmp_path / "t.gguf", 2, **change))


def test_missing_file_and_shards(tmp_path: Path):
    with pytest.raises(WorkbenchError, match="No such file"):
        GGUFFile(tmp_path / "none.gguf")
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UsageError, match="one of 3 parts"):
        GGUFFile(tmp_path / "part.gguf")


def test_end_tokens():
    prefix = "tokenizer.ggml."
    spelled = {f"{prefix}tokens": ["a", "<|eot_id|>", "<|im_end|>", "<s>"], f"{prefix}token_type": [1, 3, 1, 3]}
    assert eos_token_ids({}) == ()
    assert eos_token_ids({f"{prefix}eos_token_id": 3}) == (3,)
    # An end-of-turn token known by its spelling, only where it is a control token, only where no key names one.
    assert eos_token_ids({f"{prefix}eos_token_id": 3, **spelled}) == (3, 1)
    assert eos_token_ids({f"{prefix}eos_token_id": 3, f"{prefix}eot_token_id": 0, **spelled}) == (3, 0)
    assert eos_token_ids({f"{prefix}eos_token_id": 1, f"{prefix}eom_token_id": 2, **spelled}) == (1, 2)
