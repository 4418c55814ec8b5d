"""``quantization="fast"``: the weight format that decodes fastest here without losing anything that shows.

Unless ``kv_cache_dtype`` says otherwise, keys and values are kept in 16 bits with it, and their loss counts too.

What a format loses is measured: the Kullback-Leibler divergence of its next-token distributions from float32's on a
fixed text, KL(float32 ‖ format), in nats a token. How fast it is, is measured too: decode steps of one request. Both
are kept in ``WORKBENCH_HOME`` for the same weights, kernels and processor, so that only the first time takes a while.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kernels.cpu.build import digest
from workbench.attention.registry import attention_backend
from workbench.config import EngineConfig
from workbench.engine.request import Request
from workbench.files import write_atomically
from workbench.loading import Checkpoint, LoadedModel, load_scheme
from workbench.machine import cpu_name, num_cpus
from workbench.model.config import ModelConfig
from workbench.model.cost import StepCost
from workbench.model.decoder import heads_of
from workbench.model.divergence import kl_divergence
from workbench.model.kv_cache import KVCache
from workbench.model.quantize import FROM_FLOATS, SCHEMES, refusal, require_scheme
from workbench.model.runner import ModelRunner
from workbench.model.step_recorders import captured_steps
from workbench.model.store import home
from workbench.plan import Scheduled, StepPlan
from workbench.sampling_params import SamplingParams
from workbench.text.default_text import DEFAULT_TEXT
from workbench.text.tokenizer import Tokenizer

MOST_LOSS = 2e-3
"""KL in nats a token that nobody sees: an eighth of what 8-bit activations cost the course's model."""
TEXT_TOKENS = 384
STEPS = 24
CONTEXT = 128
"""Tokens before the timed decode steps."""


class Tried(NamedTuple):
    """What one format does here."""

    scheme: str
    kl: float
    """Nats a token."""
    step_ms: float
    """Median decode step of one request."""


def load_model(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> LoadedModel:
    """Loads weights as ``quantization`` says. Without a ``tokenizer`` ``fast`` scores random tokens.

    Raises UsageError for a format that cannot be had here (on this device, without a compiler, on a CPU
    beside 16-bit weights).
    """
    config = checkpoint.config
    wanted, why = config.quantization, "asked for"
    if wanted == "auto":
        wanted, why = _own(checkpoint)
    if wanted != "none":
        require_scheme(wanted, checkpoint.stored, config.dtype, checkpoint.device)
    if wanted == "fast":
        wanted, why = _fastest(checkpoint, tokenizer)
    return load_scheme(checkpoint, wanted, why)


def _own(checkpoint: Checkpoint) -> tuple[str, str]:
    """What ``auto`` is: a quantized checkpoint's own numbers where kernels compute with them, else floats. GGUF files
    too are floats unless asked for: their blocks are how the course's exact model is stored."""
    stored = checkpoint.stored
    if stored is None or stored == "gguf":
        return "none", "no other format was asked for"
    if reason := refusal(stored, checkpoint.config.dtype, checkpoint.device):
        return "none", f"the checkpoint is {stored}, and as floats computed with: quantization={stored!r} {reason}"
    return stored, "the checkpoint is"


def kv_dtype(config: EngineConfig, scheme: str, activations: torch.dtype) -> torch.dtype:
    """Of stored keys and values, where weights are kept in ``scheme``."""
    chosen = config.kv_cache_dtype == "auto" and config.quantization == "fast" and scheme != "none"
    return torch.float16 if chosen or config.kv_cache_dtype == "fp16" else activations


def _fastest(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """The scheme, and why."""
    file = home() / "fast.json"
    kept, key = _read(file), _key(checkpoint.config, checkpoint.source)
    if key not in kept:
        kept[key] = [list(one) for one in _try_all(checkpoint, tokenizer)]
        _write(file, kept)
    tried = [Tried(*one) for one in kept[key]]
    best = choose(tried)
    told = why(tried, best)
    if kv_dtype(checkpoint.config, best.scheme, torch.float32) is torch.float16:
        told += "; keys and values in 16 bits"
    return best.scheme, told


def choose(tried: list[Tried]) -> Tried:
    """The fastest of those that lose little enough; float32 loses nothing, so there is always one."""
    return min((one for one in tried if one.kl <= MOST_LOSS), key=lambda one: one.step_ms)


def why(tried: list[Tried], best: Tried) -> str:
    """The choice in words, with what was measured of the others."""
    rows = [f"{one.scheme} {one.step_ms:.1f} ms, KL {one.kl:.1e}" for one in tried]
    return f"{best.scheme} is the fastest with KL ≤ {MOST_LOSS:g} of a decode step here: {'; '.join(rows)}"


def _try_all(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> list[Tried]:
    text = _text(checkpoint.model_config, tokenizer)
    reference: np.ndarray | None = None
    tried = []
    for scheme in ("none", *SCHEMES):
        if scheme not in ("none", *FROM_FLOATS, checkpoint.stored):
            continue
        loaded = load_scheme(checkpoint, scheme, "tried")
        runner = _runner(loaded, len(text), kv_dtype(checkpoint.config, scheme, torch.float32))
        logits = runner.logits(text).numpy()
        reference = logits if reference is None else reference
        loss = max(0.0, kl_divergence(reference, logits))
        tried.append(Tried(scheme, loss, 1e3 * _step_seconds(runner, text)))
    return tried


def _text(model_config: ModelConfig, tokenizer: Tokenizer | None) -> list[int]:
    length = min(TEXT_TOKENS, model_config.max_position_embeddings)
    if tokenizer is None:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, model_config.vocab_size, (length,), generator=generator).tolist()
    return tokenizer.encode(DEFAULT_TEXT)[:length]


def _runner(loaded: LoadedModel, num_tokens: int, cache_dtype: torch.dtype) -> ModelRunner:
    shape, cpu, f32 = loaded.model_config, torch.device("cpu"), torch.float32
    decoder = loaded.decoder(attention_backend("auto", heads_of(shape, f32, cpu, cache_dtype)), num_tokens)
    cache = KVCache(shape, -(-num_tokens // 16), 16, cache_dtype, cpu)
    return ModelRunner(decoder, cache, StepCost(shape, 0, 0), captured=captured_steps(decoder, cache, 1, num_tokens))


@torch.inference_mode()
def _step_seconds(runner: ModelRunner, text: list[int]) -> float:
    """Median of decode steps of one request after part of the text."""
    begin = min(CONTEXT, len(text) // 2)
    request = Request("timed", text, SamplingParams(temperature=0), max_num_tokens=len(text) + 1)
    request.block_table = list(range(runner.cache.num_blocks))
    times = []
    for position in range(begin, min(begin + STEPS, len(text))):
        start = time.perf_counter()
        runner.execute(StepPlan([Scheduled(request, position, 1, "decode", True)]))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _key(config: EngineConfig, source: Path | str) -> str:
    """The same weights, kernels and processor: what was measured for one holds for the other."""
    parts = [str(source), config.load_format, str(config.seed), digest(), cpu_name(), str(num_cpus())]
    parts += [str(torch.get_num_threads()), str(TEXT_TOKENS), config.kv_cache_dtype]
    if isinstance(source, Path):
        files = [source] if source.is_file() else sorted(source.glob("*.safetensors"))
        parts += [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(file: Path) -> dict[str, list[list[str | float]]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        good = {key: [Tried(str(s), float(kl), float(ms)) for s, kl, ms in rows] for key, rows in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return {key: [list(one) for one in rows] for key, rows in good.items() if any(one.scheme == "none" for one in rows)}


def _write(file: Path, kept: dict[str, list[list[str | float]]]) -> None:
    with contextlib.suppress(OSError):  # then it is measured again next time
        write_atomically(file, json.dumps(kept, indent=1))
