"""transformers serving requests: static batches and paged continuous batching. Imports torch and transformers only."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

NO_TOKEN = -1
"""An end-of-sequence id that no model samples."""
First = Callable[[float | None], None]
"""Told when the first token of all came: the time (``time.perf_counter``), None for now."""


def without_stops(model: Any) -> Any:
    """The model, set up so that no token ends an answer."""
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


class _Watch:
    """A streamer that only tells when the first token came: the prompt is put first."""

    def __init__(self, first: First) -> None:
        self.first = first
        self.puts = 0

    def put(self, tokens: torch.Tensor) -> None:
        self.puts += 1
        if self.puts == 2:
            self.first(None)

    def end(self) -> None:
        pass


class TransformersPeer:
    """Static batching (``generate``) and paged continuous batching (``generate_batch``): greedy, no stop tokens."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def generate(
        self, prompts: list[list[int]], output_lens: list[int], first: First = lambda at: None
    ) -> list[list[int]]:
        """One left-padded batch that runs until its longest answer is done; each answer is cut to what was asked."""
        width, device = max(map(len, prompts)), self.model.device
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max(output_lens),
                do_sample=False,
                use_cache=True,
                streamer=_Watch(first),
            )
        answers = out[:, width:].tolist()
        return [answer[:length] for answer, length in zip(answers, output_lens, strict=True)]

    def generate_batch(
        self, prompts: list[list[int]], output_lens: list[int], first: First = lambda at: None
    ) -> list[list[int]]:
        """What ``generate_batch`` does, with an output length for each request, through paged sdpa attention."""
        from transformers import ContinuousBatchingConfig

        before = self.model.config._attn_implementation
        # A quarter of free memory for the cache, as this engine takes on a CPU.
        sizes = ContinuousBatchingConfig(max_memory_percent=0.25)
        generation = copy.deepcopy(self.model.generation_config)
        generation.eos_token_id = NO_TOKEN
        generation.do_sample = False
        came: list[float] = []
        try:
            with (
                torch.inference_mode(),
                self.model.continuous_batching_context_manager(generation, continuous_batching_config=sizes) as manager,
            ):
                names = [
                    manager.add_request(prompt, max_new_tokens=length, eos_token_id=NO_TOKEN, record_timestamps=True)
                    for prompt, length in zip(prompts, output_lens, strict=True)
                ]
                answers: dict[str, list[int]] = {}
                while len(answers) < len(names):
                    result = manager.get_result(timeout=1)
                    if result is not None and result.is_finished():
                        answers[result.request_id] = list(result.generated_tokens)
                        came += result.timestamps[:1]
                    elif result is None and not manager.is_running():
                        raise RuntimeError("transformers' generate_batch stopped before it was done")
        finally:
            self.model.set_attn_implementation(before)
        if came:
            first(min(came))
        return [answers[name] for name in names]
