"""A ModelRunner without an engine, a checkpoint or a tokenizer, and requests to hand to it."""

from __future__ import annotations

from typing import Any

import torch

from workbench.attention.registry import BACKENDS
from workbench.engine.request import Request
from workbench.model.config import ModelConfig
from workbench.model.cost import StepCost
from workbench.model.decoder import Decoder, heads_of
from workbench.model.kv_cache import KVCache
from workbench.model.layer_weights import Weights
from workbench.model.quantize import quantize
from workbench.model.runner import ModelRunner
from workbench.model.weights.expected import expected_tensors
from workbench.sampling_params import SamplingParams

BLOCK_SIZE = 4


def open_runner(
    config: ModelConfig, backend: str, device: torch.device, dtype: torch.dtype, scheme: str | None = None
) -> ModelRunner:
    """With weights of the right shapes, all numbers small and alike, and 64 blocks; in a quantization ``scheme``."""
    shapes = expected_tensors(config).items()
    weights: Weights = {name: torch.full(shape, 0.01, dtype=dtype, device=device) for name, shape in shapes}
    if scheme is not None:
        quantize(weights, scheme)
    decoder = Decoder(config, weights, BACKENDS[backend](heads_of(config, dtype, device, dtype)), max_model_len=256)
    return ModelRunner(decoder, KVCache(config, 64, BLOCK_SIZE, dtype, device), StepCost(config, 0, 0))


def request(prompt: int, output: int, first_block: int = 0, **options: Any) -> Request:
    """One with so many tokens, and blocks enough for them from ``first_block`` on."""
    made = Request(
        f"{prompt}+{output}", range(prompt), SamplingParams(**options), max_num_tokens=99, eos_token_ids=(2,)
    )
    made.token_ids += [5, 9, 5, 11][:output]
    made.block_table = list(range(first_block, first_block - (-made.num_tokens // BLOCK_SIZE)))
    return made
