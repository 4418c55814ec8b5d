"""A model to a folder with a quantized one: load, calibrate, write."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from workbench.checks import read_json_object
from workbench.compress.calibrate import Recipe, is_matrix, quantize_layers
from workbench.compress.checkpoint import CheckpointFolder
from workbench.errors import UsageError
from workbench.model import store
from workbench.model.gguf import read_config
from workbench.model.weights import load_weights, read_model_config
from workbench.model.weights.fingerprint import weights_fingerprint
from workbench.quant.codecs import CODECS
from workbench.quant.presets import preset
from workbench.quant.result import Report
from workbench.text.sample_texts import calibration_text, calibration_texts
from workbench.text.tokenizer import tokenizer_beside

CALIBRATION_TOKENS = 4096
WRITABLE = ("w4a16", "w8a16")


def quantize_model(
    model: str,
    out: Path,
    *,
    scheme: str = "w4a16",
    algorithm: str = "rtn",
    group_size: int | None = None,
    symmetric: bool | None = None,
    order: str = "static",
    format: str = "compressed-tensors",
    calibration: str | None = None,
    num_tokens: int = CALIBRATION_TOKENS,
    progress: Callable[[int, int], None] = lambda done, of: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Writes ``model`` quantized into the folder ``out``. A run that was stopped goes on when it is started again.

    Args:
        format: what the folder holds, one of `workbench.quant.codecs.CODECS`.
        calibration: a text file; None is `sample_texts.calibration_text`.
        progress: told after each layer how many of how many are done.

    Returns:
        scheme, algorithm, group_size, bytes_before (of the same tensors in float16), bytes_after, fallbacks, seconds,
        layers [{name, snr_db, output_error}].

    Raises:
        UsageError: a scheme, algorithm, group size, format or folder that will not do; before any work.
    """
    begin = clock()
    if scheme not in WRITABLE:
        raise UsageError(f"scheme {scheme!r} cannot be written so far; choose from {', '.join(WRITABLE)}")
    args = preset(scheme, group_size, symmetric).weights
    if format not in CODECS:
        raise UsageError(f"format {format!r} is not known; choose from {', '.join(CODECS)}")
    recipe = Recipe(args, algorithm, order)
    codec = CODECS[format](
        args, order if algorithm == "gptq" and args.strategy == "group" and order != "none" else None
    )
    source = store.locate(model)
    config = read_model_config(source)
    config.require_supported()
    if config.quant_method is not None:
        raise UsageError(f"{model} is quantized already ({config.quant_method}): give the model it was made of")
    weights = load_weights(config, source, "auto", torch.float32)
    dense = {name: t for name, t in weights.items() if isinstance(t, torch.Tensor)}
    for name, tensor in dense.items():
        if is_matrix(name):
            codec.require_fit(*tensor.shape, name.removesuffix(".weight"))
    tokenizer = tokenizer_beside(source)
    texts = []
    if algorithm != "rtn":
        if tokenizer is None:
            raise UsageError(f"{model} has no tokenizer, which calibration texts need: use algorithm 'rtn'")
        texts = calibration_texts(tokenizer, calibration_text(calibration), num_tokens)
    plan = {
        "recipe": repr(recipe),
        "format": repr(codec),
        "weights": str(weights_fingerprint(weights)),
        "texts": hashlib.sha256(repr(texts).encode()).hexdigest(),
    }
    folder = CheckpointFolder(out, codec, plan)
    reports: list[Report] = []
    layers = quantize_layers(config, dense, texts, recipe, finished=folder.read)
    for result in layers:
        folder.write(result)
        reports += result.reports
        progress(result.index + 1, config.num_layers)
    rest = {name: t for name, t in dense.items() if not name.startswith("model.layers.")}
    hf = read_config(source) if source.suffix.lower() == ".gguf" else read_json_object(source / "config.json")
    after = folder.finish(config.num_layers, rest, hf)
    if tokenizer is not None:
        tokenizer.transformers.save_pretrained(str(out))
    return {
        "scheme": scheme,
        "algorithm": algorithm,
        "format": format,
        "group_size": args.group_size or -1,
        "bytes_before": sum(2 * t.numel() for t in dense.values()),
        "bytes_after": after,
        "bits_per_weight": args.bits_per_number((config.hidden_size, config.hidden_size)),
        "quantized": sum(is_matrix(name) for name in dense),
        "fallbacks": [why for told in reports for why in told.fallbacks],
        "seconds": clock() - begin,
        "layers": [{"name": r.name, "snr_db": r.snr_db, "output_error": r.output_error} for r in reports],
    }
