"""How many requests a memory holds at once: by the engine's own sizes (bytes a token, blocks), and by running them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from workbench.config import EngineConfig
from workbench.errors import UsageError
from workbench.measure.workload import piece_tokens
from workbench.model.config import ModelConfig
from workbench.sampling_params import SamplingParams
from workbench.sizing import resolve_num_kv_blocks

if TYPE_CHECKING:
    from workbench.lab.lesson import Lesson
    from workbench.llm import LLM


class Seats(NamedTuple):
    """What becomes of a memory."""

    weight_bytes: int
    room_bytes: int
    """For keys and values; negative where the weights alone are too much."""
    block_bytes: int
    blocks: int
    blocks_per_seat: int
    seats: int
    """Requests of full length at once."""

    @property
    def seat_bytes(self) -> int:
        return self.blocks_per_seat * self.block_bytes


def seats_of(
    config: ModelConfig,
    room_bytes: int,
    context: int,
    kv_dtype: str | float = "bfloat16",
    block_size: int = 16,
    weight_bytes: int = 0,
) -> Seats:
    """``room_bytes``: what keys and values may take; ``context``: tokens of each request."""
    if context < 1 or block_size < 1:
        raise UsageError(f"context={context}, block_size={block_size}: give whole numbers of at least 1")
    per_token = config.kv_bytes_per_token(kv_dtype)
    block_bytes, each = per_token * block_size, -(-context // block_size)
    blocks = 0
    if room_bytes >= block_bytes:
        engine = EngineConfig(kv_cache_memory_bytes=room_bytes, block_size=block_size)
        blocks = resolve_num_kv_blocks(engine, context, per_token, room_bytes)
    return Seats(weight_bytes, room_bytes, block_bytes, blocks, each, blocks // each)


def seats_on(
    config: ModelConfig,
    memory_bytes: int,
    context: int,
    kv_dtype: str | float = "bfloat16",
    utilization: float = 0.9,
    block_size: int = 16,
) -> Seats:
    """The same on a whole GPU: ``utilization`` of its memory, less the weights in 16 bits; activations not counted."""
    weights = config.weight_bytes("bfloat16")
    return seats_of(config, int(memory_bytes * utilization) - weights, context, kv_dtype, block_size, weights)


def kv_bytes_on_each(config: ModelConfig, gpus: int, kv_dtype: str | float = "bfloat16") -> int:
    """Bytes that a token keeps on each of ``gpus`` GPUs which share a model by its heads (tensor parallelism).

    KV heads are dealt out, at least one to each; a latent, which has no heads, lies on every one. Raises UsageError
    where the query heads, or the KV heads when there are more of them than GPUs, cannot be dealt out evenly.
    """
    if gpus < 1 or config.num_heads % gpus:
        raise UsageError(
            f"{config.num_heads} query heads cannot be dealt out to {gpus} GPUs: take a number that divides"
        )
    if config.latent is not None:
        return config.kv_bytes_per_token(kv_dtype)
    have = config.num_kv_heads
    if max(have, gpus) % min(have, gpus):
        raise UsageError(f"{have} KV heads and {gpus} GPUs: one number must divide the other")
    return replace(config, num_kv_heads=max(1, have // gpus)).kv_bytes_per_token(kv_dtype)


def most_at_once(lesson: Lesson, llm: LLM, requests: int, tokens: int) -> int:
    """The most requests that ran in one step of the engine, of so many that all came at once.

    ``tokens``: of each, answer included; six of them are the answer.
    """
    answer = 6
    if tokens <= answer:
        raise UsageError(f"tokens={tokens}: an answer of {answer} needs a prompt before it")
    engine = lesson.engine(llm)
    for number in range(requests):
        prompt = piece_tokens(lesson.seed, f"ask {number}", tokens - answer, llm.model_config.vocab_size)
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True))
    most = 0
    while engine.has_unfinished():
        most = max(most, engine.step().num_running)
    return most
