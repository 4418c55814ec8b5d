"""The front door: from what the user named to a configuration and to checked weights in the right dtype and place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from kernels.reference.weights import Weight, unpack
from kernels.triton import launch
from workbench.errors import UsageError, WorkbenchError
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config, shipped_names
from workbench.model.weights.dummy import dummy_weights
from workbench.model.weights.expected import EMBEDDING, HEAD, check_tensors, expected_tensors, is_buffer, stays_float32
from workbench.model.weights.files import has_safetensors, load_safetensors
from workbench.model.weights.names import of_prediction_layer, one_by_one


def pick_format(source: Path | str, load_format: str) -> str:
    """``dummy``, ``gguf`` or ``safetensors`` for what lies at ``source``. Raises UsageError if neither fits."""
    path = Path(source)
    is_gguf, is_folder = path.is_file() and path.suffix.lower() == ".gguf", has_safetensors(path)
    if load_format == "dummy" or (load_format == "gguf" and is_gguf) or (load_format == "safetensors" and is_folder):
        return load_format
    if load_format == "auto" and (is_gguf or is_folder):
        return "gguf" if is_gguf else "safetensors"
    wanted = {"gguf": "a .gguf file", "safetensors": "a folder with *.safetensors files"}
    wanted["auto"] = f"{wanted['gguf']} or {wanted['safetensors']}"
    if load_format not in wanted:
        raise UsageError(f"load_format={load_format!r} is not known; choose from auto, dummy, gguf, safetensors")
    state = "is not that" if path.exists() else "does not exist"
    raise UsageError(f"load_format={load_format!r} needs {wanted[load_format]}; {source} {state}")


def read_model_config(source: Path | str, load_format: str = "auto") -> ModelConfig:
    """The configuration of a folder, a config.json, a .gguf file or, for ``dummy``, a shipped name.

    Raises UsageError if ``source`` is none of these, WorkbenchError if a file is missing or damaged.
    """
    path = Path(source)
    if path.is_file() and path.suffix.lower() == ".gguf":
        from workbench.model.gguf.hf_config import read_config

        return ModelConfig.from_dict(read_config(path), str(path))
    if path.exists():
        return ModelConfig.from_path(path)
    if load_format == "dummy" and str(source) in shipped_names():
        return ModelConfig.from_dict(shipped_config(str(source)))
    names = f"; for load_format='dummy' also {', '.join(shipped_names())}" if load_format == "dummy" else ""
    raise UsageError(f"{source} is no folder with a config.json and no .gguf file{names}")


def load_weights(
    config: ModelConfig,
    source: Path | str | None,
    load_format: str,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    seed: int = 0,
    packed: bool = False,
) -> dict[str, torch.Tensor | Weight]:
    """Every tensor of `expected_tensors`, in ``dtype`` on ``device``, by its Hugging Face name.

    ``packed``: matrices stay as the file keeps them, where kernels compute with that: those of a .gguf file
    (`workbench.model.gguf.mapping.read_packed`) and quantized ones (`workbench.model.weights.quantized.as_weight`).
    ``source`` is a folder or a .gguf file and may be None for ``dummy``. Raises WorkbenchError naming the tensors that
    are missing, unexpected or of another shape; UsageError for a model or a format that is not supported.
    """
    expected = expected_tensors(config)
    if load_format != "dummy" and source is None:
        raise UsageError(f"load_format={load_format!r} needs a model folder or a .gguf file; only dummy needs none")
    chosen = "dummy" if source is None else pick_format(source, load_format)
    if chosen == "dummy":
        return dict(dummy_weights(config, seed, dtype, device))
    loaded: dict[str, torch.Tensor | Weight] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in _read(Path(str(source)), chosen, packed, config.quant_method is not None, torch.device(device)):
        if is_buffer(name) or of_prediction_layer(name, config):
            continue
        shapes[name] = tuple(tensor.shape)
        if name in expected or name == HEAD:
            kept = torch.float32 if stays_float32(name) else dtype
            loaded[name] = tensor.to(device) if isinstance(tensor, Weight) else tensor.to(device=device, dtype=kept)
    if config.tie_word_embeddings and HEAD in loaded:
        _drop_copied_head(loaded, shapes, str(source))
    check_tensors(expected, shapes, str(source))
    return {name: loaded[name] for name in expected}


def _read(
    source: Path, chosen: str, packed: bool, quantized: bool, device: torch.device
) -> Iterator[tuple[str, torch.Tensor | Weight]]:
    if chosen == "safetensors" and quantized:
        from workbench.model.weights.quantized import load_quantized

        return load_quantized(source, packed, launch.on_gpu(device))
    if chosen == "safetensors":
        return (pair for stored in load_safetensors(source) for pair in one_by_one(*stored))
    from workbench.model.gguf.mapping import iter_tensors

    return iter_tensors(source, packed)


def _drop_copied_head(
    loaded: dict[str, torch.Tensor | Weight], shapes: dict[str, tuple[int, ...]], source: str
) -> None:
    """Some checkpoints store the tied head once more. An identical copy is dropped, another one refused."""
    embedding = loaded.get(EMBEDDING)
    if embedding is not None and not torch.equal(_values(embedding), _values(loaded[HEAD])):
        raise WorkbenchError(
            f"{source} ties its head to the embedding (tie_word_embeddings) but stores another {HEAD}: "
            "one of the two is wrong"
        )
    del loaded[HEAD], shapes[HEAD]


def _values(weight: torch.Tensor | Weight) -> torch.Tensor:
    return unpack(weight) if isinstance(weight, Weight) else weight
