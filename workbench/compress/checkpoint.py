"""A quantized model as a folder: layers written one by one as they are ready, so that a stopped run goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from workbench.compress.calibrate import LayerResult, is_matrix
from workbench.errors import UsageError
from workbench.files import write_atomically
from workbench.quant.codecs.interface import Codec, WeightCodec
from workbench.quant.result import Report

PARTS = ".layers"
SCRATCH = ".part"
"""The end of a file's name while it is written. One that a killed run left is written over."""
_PLAN = "plan.json"
_FINISHED = ".finished.json"
"""The plan of a finished run, beside what it wrote."""


def require_half(tensors: Mapping[str, Tensor]) -> None:
    """Raises UsageError for the first tensor with numbers that float16 does not hold."""
    for name, t in tensors.items():
        if t.is_floating_point() and t.numel() and not float(t.abs().max()) <= torch.finfo(torch.float16).max:
            raise UsageError(f"{name} has numbers beyond float16's 65504: models so large in value are not written")


class LayersFolder:
    """Keeps finished layers in a folder, each in a file of its own, until the whole model is written."""

    def __init__(self, folder: Path, codec: WeightCodec, plan: Mapping[str, Any]) -> None:
        """plan: everything that decides what the layers become. Raises UsageError for a folder that holds something
        else, layers of another plan, or a finished model."""
        self.folder, self._parts, self._codec = folder, folder / PARTS, codec
        self._plan = json.dumps(dict(plan), sort_keys=True)
        finished = folder / _FINISHED
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file: give a folder to write into")
        if self._parts.is_dir():
            begun = (self._parts / _PLAN).read_text(encoding="utf-8") if (self._parts / _PLAN).is_file() else None
            if begun not in (None, self._plan):
                raise UsageError(f"{folder} holds layers of another run ({begun}): remove it or give another folder")
        elif finished.is_file() and finished.read_text(encoding="utf-8") == self._plan:
            raise UsageError(
                f"{folder} is complete: a run with the same options has finished there, nothing is left to do"
            )
        elif folder.exists() and any(one.suffix != SCRATCH for one in folder.iterdir()):
            raise UsageError(f"{folder} is not empty: give another folder")
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, result: LayerResult) -> None:
        """Keeps a finished layer. The first one ties the folder to its plan: a run that was refused leaves it free."""
        write_atomically(self._parts / _PLAN, self._plan)
        tensors = {f"{name}.{end}": t for name, w in result.weights.items() for end, t in
                   self._codec.encode(w, name).items()}  # fmt: skip
        tensors.update(result.others)
        reports = [{field: getattr(told, field) for field in Report.__dataclass_fields__} for told in result.reports]
        target = self._part(result.index)
        scratch = target.with_suffix(SCRATCH)
        save_file(tensors, scratch, {"reports": json.dumps(reports)})
        scratch.replace(target)  # whole or not at all

    def read(self, index: int) -> LayerResult | None:
        """A layer that an earlier run has finished, exactly as a loader will see it."""
        from safetensors import safe_open

        file = self._part(index)
        if not file.is_file():
            return None
        with safe_open(str(file), framework="pt") as opened:
            told = json.loads(opened.metadata()["reports"])
        packed: dict[str, dict[str, Tensor]] = {}
        others = {}
        for name, tensor in load_file(file).items():
            stem, _, end = name.rpartition(".")
            if is_matrix(f"{stem}.weight") and end in self._codec.ENDS:
                packed.setdefault(stem, {})[end] = tensor
            else:
                others[name] = tensor
        weights = {name: self._codec.decode(parts, name) for name, parts in packed.items()}
        reports = [Report(**{**one, "fallbacks": tuple(one["fallbacks"])}) for one in told]
        return LayerResult(index, weights, others, reports)

    def tensors(self, index: int) -> dict[str, Tensor]:
        """A finished layer's tensors as the codec has them, by their full names."""
        return load_file(self._part(index))

    def close(self) -> None:
        """Forgets the layers: they are in the model now, and all else that belongs to it is written."""
        write_atomically(self.folder / _FINISHED, self._plan)
        if self._parts.is_dir():
            shutil.rmtree(self._parts)

    def leave(self) -> None:
        """Takes a folder back that holds nothing yet."""
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _part(self, index: int) -> Path:
        return self._parts / f"{index:04d}.safetensors"


class CheckpointFolder(LayersFolder):
    """Writes a model in one of `workbench.quant.codecs.CODECS`. What is not quantized is kept in 16 bits."""

    def __init__(self, folder: Path, codec: Codec, plan: Mapping[str, Any]) -> None:
        super().__init__(folder, codec, plan)
        self._config = codec.config()

    def finish(self, num_layers: int, rest: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> int:
        """Puts all layers and the ``rest`` of the tensors into one file, with a config.json. Returns its bytes."""
        tensors = dict(rest)
        for index in range(num_layers):
            tensors.update(self.tensors(index))
        ends = self._codec.ENDS  # what a codec made stays as it is
        tensors = {name: t.half() if t.dtype == torch.float32 and name.rpartition(".")[2] not in ends else t
                   for name, t in tensors.items()}  # fmt: skip
        require_half(tensors)
        scratch = self.folder / f"model.safetensors{SCRATCH}"
        save_file({name: t.contiguous() for name, t in tensors.items()}, scratch, {"format": "pt"})
        scratch.replace(self.folder / "model.safetensors")
        kept = {key: value for key, value in hf_config.items() if key != "torch_dtype"}  # its older name
        told = {**kept, "dtype": "float16", "quantization_config": self._config}
        write_atomically(self.folder / "config.json", json.dumps(told, indent=2))
        self.close()
        return (self.folder / "model.safetensors").stat().st_size
