"""A model to a folder with a quantized one: load, calibrate, write."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.reference.weights import gguf_weight, unpack
from workbench.checks import read_json_object
from workbench.compress.calibrate import ALGORITHMS, Recipe, is_matrix, quantize_layers
from workbench.compress.checkpoint import CheckpointFolder, LayersFolder, require_half
from workbench.compress.gguf import GGUFOutput, gguf_metadata
from workbench.errors import UsageError
from workbench.model import store
from workbench.model.bits import bits_of
from workbench.model.config import ModelConfig
from workbench.model.gguf import read_config
from workbench.model.weights import load_weights, read_model_config
from workbench.model.weights.fingerprint import weights_fingerprint
from workbench.quant.args import QuantArgs
from workbench.quant.codecs import CODECS
from workbench.quant.codecs.gguf import BLOCK, GgufBlocks, quantize_blocks
from workbench.quant.codecs.interface import Codec
from workbench.quant.presets import preset
from workbench.quant.result import Report, report
from workbench.text.sample_texts import LENGTH, calibration_text, calibration_texts
from workbench.text.tokenizer import Tokenizer, tokenizer_beside

CALIBRATION_TOKENS = 4096
WRITABLE = ("w4a16", "w8a16")
FORMATS = (*CODECS, "gguf")
GENERATION = "generation_config.json"


def quantize_model(
    model: str,
    out: Path,
    *,
    scheme: str = "w4a16",
    algorithm: str = "rtn",
    group_size: int | None = None,
    symmetric: bool | None = None,
    order: str | None = None,
    format: str = "compressed-tensors",
    calibration: str | None = None,
    num_tokens: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Writes ``model`` quantized into the folder ``out``. A run that was stopped goes on when it is started again.

    Args:
        format: what the folder holds, one of `FORMATS`. ``gguf``: one file, of w4a16 Q4_1 (symmetric: Q4_0), of w8a16
            Q8_0; ``rtn`` rounds as ggml does.
        order: act-order of ``gptq``; None is ``static``.
        calibration: a text file; None is `sample_texts.calibration_text`.
        num_tokens: of it, for calibration; None is `CALIBRATION_TOKENS`.
        progress: told after each layer how many of how many are done.

    Returns:
        scheme, algorithm, group_size, bytes_before (of the same tensors in float16), bytes_after, fallbacks, seconds,
        layers [{name, snr_db (None: exact), output_error}].

    Raises:
        UsageError: a scheme, algorithm, group size, format or folder that will not do, or an option that the algorithm
            has no use for; before any work.
    """
    begin = clock()
    _require_used(algorithm, order, {"calibration": calibration, "calibration tokens": num_tokens})
    order = order or "static"
    if scheme not in WRITABLE:
        raise UsageError(f"scheme {scheme!r} cannot be written so far; choose from {', '.join(WRITABLE)}")
    if format not in FORMATS:
        raise UsageError(f"format {format!r} is not known; choose from {', '.join(FORMATS)}")
    codec: Codec | GgufBlocks
    if format == "gguf":
        codec = _blocks(scheme, group_size, symmetric, algorithm, order)
        args = codec.args
    else:
        # As checkpoints keep scales: numbers are to be rounded under what is stored.
        args = replace(preset(scheme, group_size, symmetric).weights, scale="fp16")
        codec = CODECS[format](
            args, order if algorithm == "gptq" and args.strategy == "group" and order != "none" else None
        )
    recipe = Recipe(args, algorithm, order)
    source = store.locate(model)
    config = read_model_config(source)
    config.require_supported()
    if config.quant_method is not None:
        raise UsageError(f"{model} is quantized already ({config.quant_method}): give the model it was made of")
    tokenizer = tokenizer_beside(source)
    if format == "gguf":
        gguf_metadata(source, config, tokenizer)  # what a file cannot say is refused before any work
    weights = load_weights(config, source, "auto", torch.float32)
    dense = {name: t for name, t in weights.items() if isinstance(t, torch.Tensor)}
    for name, tensor in dense.items():
        if is_matrix(name):
            codec.require_fit(*tensor.shape, name.removesuffix(".weight"))
    if format != "gguf":
        require_half({name: t for name, t in dense.items() if not is_matrix(name)})
    texts = []
    if algorithm != "rtn":
        if tokenizer is None:
            raise UsageError(f"{model} has no tokenizer, which calibration texts need: use algorithm 'rtn'")
        num_tokens = CALIBRATION_TOKENS if num_tokens is None else num_tokens
        length = min(LENGTH, config.max_position_embeddings)
        texts = calibration_texts(tokenizer, calibration_text(calibration), num_tokens, length)
    plan = {
        "recipe": repr(recipe),
        "format": repr(codec),
        "weights": str(weights_fingerprint(weights)),
        "texts": hashlib.sha256(repr(texts).encode()).hexdigest(),
    }
    job = _Job(source, config, dense, texts, recipe, tokenizer, progress)
    if isinstance(codec, GgufBlocks):
        reports, after = _write_gguf(job, out, codec, plan)
    else:
        reports, after = _write_checkpoint(job, out, codec, plan)
    return {
        "scheme": scheme,
        "algorithm": algorithm,
        "format": format,
        "group_size": args.group_size or -1,
        "bytes_before": sum(2 * t.numel() for t in dense.values()),
        "bytes_after": after,
        "bits_per_weight": _bits_per_weight(codec, args, config.hidden_size),
        "quantized": sum(is_matrix(name) for name in dense),
        "fallbacks": [why for told in reports for why in told.fallbacks],
        "seconds": clock() - begin,
        "layers": [
            {"name": r.name, "snr_db": r.snr_db if math.isfinite(r.snr_db) else None, "output_error": r.output_error}
            for r in reports
        ],
    }


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be quantized, and how."""

    source: Path
    config: ModelConfig
    dense: dict[str, Tensor]
    texts: list[list[int]]
    recipe: Recipe
    tokenizer: Tokenizer | None
    progress: Callable[[int, int], None]

    def layers(self, folder: LayersFolder) -> list[Report]:
        """Quantizes every layer into the folder, those excepted that are there."""
        reports: list[Report] = []
        for result in quantize_layers(self.config, self.dense, self.texts, self.recipe, finished=folder.read):
            folder.write(result)
            reports += result.reports
            self.progress(result.index + 1, self.config.num_layers)
        return reports

    @property
    def rest(self) -> dict[str, Tensor]:
        return {name: t for name, t in self.dense.items() if not name.startswith("model.layers.")}


def _write_checkpoint(job: _Job, out: Path, codec: Codec, plan: dict[str, str]) -> tuple[list[Report], int]:
    """Reports, and the bytes of the file."""
    folder, source = CheckpointFolder(out, codec, plan), job.source
    reports = job.layers(folder)
    hf = read_config(source) if source.suffix.lower() == ".gguf" else read_json_object(source / "config.json")
    # Before the layers are forgotten, so that a run that is stopped here goes on.
    if job.tokenizer is not None:
        job.tokenizer.transformers.save_pretrained(str(out))
    if (source / GENERATION).is_file():  # what ends an answer
        shutil.copyfile(source / GENERATION, out / GENERATION)
    return reports, folder.finish(job.config.num_layers, job.rest, hf)


def _write_gguf(job: _Job, out: Path, codec: GgufBlocks, plan: dict[str, str]) -> tuple[list[Report], int]:
    kind, config = codec.type_name, job.config
    folder = LayersFolder(out, codec, plan)
    shapes = {name: tuple(t.shape) for name, t in job.dense.items()}
    try:
        output = GGUFOutput(out / f"model.{kind}.gguf", job.source, config, shapes, job.tokenizer, kind)
    except BaseException:
        folder.leave()
        raise
    try:
        reports = [] if job.recipe.algorithm == "rtn" else job.layers(folder)
        for name, tensor in job.rest.items():
            output.put(name, tensor)
        for index in range(config.num_layers):
            if job.recipe.algorithm != "rtn":
                for name, tensor in folder.tensors(index).items():
                    output.put(name.replace(".blocks", ".weight"), tensor)
                continue
            # ggml's own rounding, whose offsets are no whole zero points: there is no other form to keep it in.
            for name, tensor in job.dense.items():
                if not name.startswith(f"model.layers.{index}."):
                    continue
                if is_matrix(name):
                    data, exact = quantize_blocks(tensor, kind, name), tensor
                    back = unpack(gguf_weight(data, kind.lower(), (exact.shape[0], exact.shape[1])))
                    reports.append(report(name.removesuffix(".weight"), "rtn", exact, back))
                    tensor = data
                output.put(name, tensor)
            job.progress(index + 1, config.num_layers)
        after = output.close()
    finally:
        output.drop()
    folder.close()
    return reports, after


def _require_used(algorithm: str, order: str | None, calibration: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that would change nothing."""
    if order is not None and algorithm in ALGORITHMS and algorithm != "gptq":
        raise UsageError(f"act-order {order!r} is of algorithm 'gptq', not of {algorithm!r}: leave it out")
    given = [f"{name} {value!r}" for name, value in calibration.items() if value is not None]
    if algorithm == "rtn" and given:
        raise UsageError(f"{given[0]}: algorithm 'rtn' looks at no text: leave it out, or take 'gptq' or 'awq'")


def _blocks(scheme: str, group_size: int | None, symmetric: bool | None, algorithm: str, order: str) -> GgufBlocks:
    """The type of a scheme. Raises UsageError for what its blocks fix themselves."""
    if group_size not in (None, BLOCK):
        raise UsageError(f"group size {group_size}: GGUF's blocks are of {BLOCK}; leave it out or write another format")
    if algorithm == "gptq" and order == "group":
        raise UsageError("act-order 'group' needs a g_idx, which GGUF's blocks have not: take 'static' or 'none'")
    if scheme == "w8a16":
        return GgufBlocks("Q8_0")
    return GgufBlocks("Q4_0" if symmetric else "Q4_1")


def _bits_per_weight(codec: Codec | GgufBlocks, args: QuantArgs, inputs: int) -> float:
    return bits_of(codec.type_name) if isinstance(codec, GgufBlocks) else args.bits_per_number((inputs, inputs))
