"""Safetensors checkpoints: one file, or shards with an index that says which tensor lies where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from workbench.checks import read_json_object, shown
from workbench.errors import UsageError, WorkbenchError

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def has_safetensors(folder: Path) -> bool:
    """Whether the folder holds (part of) a safetensors checkpoint."""
    return folder.is_dir() and ((folder / INDEX).is_file() or any(folder.glob("*.safetensors")))


def load_safetensors(
    folder: Path, whole_numbers: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every tensor of the checkpoint, file by file, on the CPU and in the dtype it is stored in.

    ``whole_numbers``: of which tensors by name they may be. Raises WorkbenchError for a missing or damaged file
    (named), UsageError for another tensor that is not of floats.
    """
    for file, names in _files(Path(folder)):
        with _opened(file, names) as (opened, held):
            for name in held:
                tensor = opened.get_tensor(name)
                if tensor.dtype not in _FLOATS and not whole_numbers(name):
                    kind = str(tensor.dtype).removeprefix("torch.")
                    raise UsageError(
                        f"{file}: {name} is stored as {kind}; this version reads float32, float16 and bfloat16"
                    )
                yield name, tensor


def safetensors_names(folder: Path) -> list[str]:
    """The names of all tensors of a checkpoint; raises as `load_safetensors` does."""
    found = []
    for file, names in _files(Path(folder)):
        with _opened(file, names) as (_, held):
            found += held
    return found


@contextmanager
def _opened(file: Path, names: list[str] | None) -> Iterator[tuple[Any, list[str]]]:
    """A file and the tensors that are to be read of it."""
    try:
        with safe_open(str(file), framework="pt") as opened:
            held = set(opened.keys())
            absent = [name for name in names or () if name not in held]
            if absent:
                raise WorkbenchError(f"{file} does not hold {absent[0]!r}, which the index places there")
            yield opened, names or sorted(held)
    except (SafetensorError, OSError) as error:
        raise WorkbenchError(f"{file} is damaged or not a safetensors file ({error}); fetch it again") from None


def _files(folder: Path) -> list[tuple[Path, list[str] | None]]:
    """Files to read and, where an index tells, the tensors each must hold."""
    if (folder / INDEX).is_file():
        shards = _read_index(folder / INDEX)
        _require(folder, sorted(shards))
        return [(folder / shard, names) for shard, names in sorted(shards.items())]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise WorkbenchError(f"{folder} holds no *.safetensors file")
    if (folder / "model.safetensors") in found:
        # Some publishers put a second copy in their own layout beside it.
        return [(folder / "model.safetensors", None)]
    match = _SHARD.fullmatch(found[0].name)
    if match:
        stem, _, count = match.groups()
        wanted = [f"{stem}-{number:0{len(count)}d}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
        _require(folder, wanted)
        return [(folder / name, None) for name in wanted]
    return [(file, None) for file in found]


def _read_index(index: Path) -> dict[str, list[str]]:
    """The tensors of each shard. Raises WorkbenchError naming the index and what is wrong with it."""
    places = read_json_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise WorkbenchError(
            f"{index}: weight_map={shown(places)} must be an object that says which file holds which tensor; "
            "fetch it again"
        )
    shards: dict[str, list[str]] = {}
    for name, shard in places.items():
        # A name and not a way: the files of a checkpoint lie in its own folder.
        if not isinstance(shard, str) or shard in ("", "..") or "\0" in shard or Path(shard).name != shard:
            raise WorkbenchError(
                f"{index}: weight_map places {shown(name)} in {shown(shard)}, which is no file name; fetch it again"
            )
        shards.setdefault(shard, []).append(name)
    return shards


def _require(folder: Path, names: list[str]) -> None:
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise WorkbenchError(
            f"{folder} lacks {len(absent)} of {len(names)} weight files: {', '.join(absent[:6])}; fetch the model again"
        )
