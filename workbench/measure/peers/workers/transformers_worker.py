"""transformers in float32: ``generate`` (one static batch) or ``generate_batch`` (continuous batching)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from protocol import Clock, serve
from transformers import AutoModelForCausalLM
from transformers_serving import TransformersPeer, without_stops


class Transformers:
    def __init__(self, model: str, threads: int, method: str) -> None:
        torch.set_num_threads(threads)
        self.model = without_stops(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))
        self.method = method
        self.run([[1, 2, 3, 4]], [4], 0, Clock())

    def info(self) -> dict[str, Any]:
        batching = "one static batch" if self.method == "generate" else "paged, continuous batching"
        return {
            "version": f"{version('transformers')}, torch {torch.__version__}",
            "kv_cache": "float32",
            "context": f"{self.method}: {batching}, sdpa",
        }

    def run(self, prompts: list[list[int]], output_lens: list[int], head: int, clock: Clock) -> list[list[int]]:
        peer = TransformersPeer(self.model)
        clock.start()
        answers: list[list[int]] = getattr(peer, self.method)(prompts, output_lens, clock.first)
        clock.stop()
        return answers

    def logits(self, ids: list[int]) -> Any:
        with torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0].numpy()


if __name__ == "__main__":
    serve(Transformers)
