"""Workloads: what is asked of an engine, before anything of the engine is known. No torch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that all arrive at once. The lengths and the seed say everything: prompts are drawn from them."""

    input_lens: tuple[int, ...]
    output_lens: tuple[int, ...]
    seed: int
    description: dict[str, Any]

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Random token ids below ``vocab_size``, the same for the same seed."""
        draw = random.Random(self.seed)
        return [[draw.randrange(vocab_size) for _ in range(length)] for length in self.input_lens]


def uniform_workload(num_prompts: int, input_len: tuple[int, int], output_len: tuple[int, int], seed: int) -> Workload:
    """Prompt and output lengths drawn uniformly from closed ranges."""
    draw = random.Random(seed)
    pairs = [(draw.randint(*input_len), draw.randint(*output_len)) for _ in range(num_prompts)]
    description = {
        "kind": "uniform",
        "num_prompts": num_prompts,
        "input_len": list(input_len),
        "output_len": list(output_len),
        "seed": seed,
    }
    return Workload(tuple(a for a, _ in pairs), tuple(b for _, b in pairs), seed, description)
