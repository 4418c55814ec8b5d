"""Checkpoints whose files are missing, cut short or made up: told by the file's name, never another error."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.model.tiny import make_tiny
from workbench.errors import UsageError, WorkbenchError
from workbench.model.weights import load_weights, read_model_config

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a tiny model in three shards, by name."""
    folder = tmp_path_factory.mktemp("saved")
    make_tiny("llama2", folder, max_shard_size="200KB")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def folder(saved: dict[str, bytes], tmp_path: Path) -> Path:
    for name, data in saved.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def load(folder: Path) -> None:
    load_weights(read_model_config(folder), folder, "auto", torch.float32)


def refused(folder: Path, words: str) -> None:
    with pytest.raises(WorkbenchError, match=words) as caught:
        load(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "index.json cannot be read: it is not whole JSON"),
        ("{", "index.json cannot be read: it is not whole JSON"),
        ("[1]", "index.json cannot be read: it is a JSON list, not an object"),
        ("null", "index.json cannot be read: it is a JSON NoneType"),
        ("[" * 100_000, "index.json cannot be read: it is not whole JSON"),
        ("{}", "index.json: weight_map=None must be an object"),
        ('{"weight_map": []}', r"index.json: weight_map=\[\] must be an object"),
        ('{"weight_map": "x"}', "index.json: weight_map='x' must be an object"),
        ('{"weight_map": {}}', r"index.json: weight_map=\{\} must be an object"),
        ('{"weight_map": {"a": 5}}', "index.json: weight_map places 'a' in 5, which is no file name"),
        ('{"weight_map": {"a": null}}', "places 'a' in None, which is no file name"),
        ('{"weight_map": {"a": ""}}', "places 'a' in '', which is no file name"),
        ('{"weight_map": {"a": ".."}}', "places 'a' in '..', which is no file name"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "which is no file name"),
        ('{"weight_map": {"a": "/x.safetensors"}}', "which is no file name"),
        ('{"weight_map": {"a": "x\\u0000"}}', "which is no file name"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "lacks 1 of 1 weight files: gone.safetensors; fetch the model"),
        ('{"weight_map": {"a": "config.json"}}', "config.json is damaged or not a safetensors file"),
    ],
)
def test_an_index_that_is_wrong_is_told(folder: Path, text: str, words: str) -> None:
    (folder / INDEX).write_text(text)
    refused(folder, words)


def test_an_index_of_other_bytes_is_told(folder: Path) -> None:
    (folder / INDEX).write_bytes(b'{"weight_map": "\xff"}')
    refused(folder, "index.json cannot be read")


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_a_shard_that_is_missing_is_told(folder: Path) -> None:
    gone = shards(folder)[-1]
    gone.unlink()
    refused(folder, f"lacks 1 of {len(shards(folder)) + 1} weight files: {gone.name}; fetch the model again")


def test_a_shard_that_is_a_folder_is_told(folder: Path) -> None:
    gone = shards(folder)[0]
    gone.unlink()
    gone.mkdir()
    refused(folder, gone.name)


def replace_header(data: bytes, change: Any) -> bytes:
    """``change`` gets the parsed header of a safetensors file and returns what stands there instead."""
    length = struct.unpack("<Q", data[:8])[0]
    header = change(json.loads(data[8 : 8 + length]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def first_tensor(header: dict[str, Any], **changes: Any) -> dict[str, Any]:
    name = next(name for name in header if name != "__metadata__")
    return {**header, name: {**header[name], **changes}}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data + b"more",
        lambda data: struct.pack("<Q", 2**63) + data[8:],
        lambda data: struct.pack("<Q", 0) + data[8:],
        lambda data: struct.pack("<Q", 3) + data[8:],
        lambda data: struct.pack("<Q", len(data)) + data[8:],
        lambda data: replace_header(data, lambda header: []),
        lambda data: replace_header(data, lambda header: b"{"),
        lambda data: replace_header(data, lambda header: b"\xff\xfe"),
        lambda data: replace_header(data, lambda header: {}),
        lambda data: replace_header(data, lambda header: first_tensor(header, dtype="F99")),
        lambda data: replace_header(data, lambda header: first_tensor(header, dtype=4)),
        lambda data: replace_header(data, lambda header: first_tensor(header, shape="x")),
        lambda data: replace_header(data, lambda header: first_tensor(header, shape=[-1])),
        lambda data: replace_header(data, lambda header: first_tensor(header, shape=[2**40, 2**40])),
        lambda data: replace_header(data, lambda header: first_tensor(header, data_offsets=[0, 10**15])),
        lambda data: replace_header(data, lambda header: first_tensor(header, data_offsets=[8, 0])),
    ],
)
def test_a_damaged_shard_is_told(folder: Path, damage: Any) -> None:
    shard = shards(folder)[0]
    shard.write_bytes(damage(shard.read_bytes()))
    refused(folder, f"{shard.name} is damaged or not a safetensors file|{shard.name} does not hold")


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL", "U16", "C64", "F4"])
def test_a_dtype_that_is_not_read_here_is_told(folder: Path, dtype: str) -> None:
    """Of the right number of bytes, so that only the dtype is in the way."""
    sizes = {"U16": 2, "C64": 8, "F4": 0.5}
    shard = shards(folder)[0]

    def change(header: dict[str, Any]) -> dict[str, Any]:
        name, entry = next((name, entry) for name, entry in header.items() if name != "__metadata__")
        num_bytes = entry["data_offsets"][1] - entry["data_offsets"][0]
        return {**header, name: {**entry, "dtype": dtype, "shape": [int(num_bytes / sizes.get(dtype, 1))]}}

    shard.write_bytes(replace_header(shard.read_bytes(), change))
    with pytest.raises((UsageError, WorkbenchError), match=shard.name):
        load(folder)


@pytest.mark.parametrize("seed", range(3))
def test_any_damage_to_any_file_loads_or_is_told(saved: dict[str, bytes], folder: Path, seed: int) -> None:
    """Bytes of headers, index and configuration are changed, removed or cut off, sixty times over."""
    draw, told = Random(seed), 0
    names = sorted(name for name in saved if name != "generation_config.json")
    for _ in range(60):
        name = draw.choice(names)
        data = bytearray(saved[name])
        head = min(len(data), 2000)
        if draw.random() < 0.3:
            del data[draw.randrange(len(data)) :]
        else:
            start = draw.randrange(head)
            data[start : start + draw.randrange(4)] = draw.choice([b"", b"\xff", b'"', b"9", b"[", b"-1", b"null"])
        (folder / name).write_bytes(data)
        try:
            load(folder)
        except (WorkbenchError, UsageError) as error:
            assert "\n" not in str(error)
            told += 1
        (folder / name).write_bytes(saved[name])
    assert told > 20
    load(folder)
