"""This engine: one `LLM` whose pool holds the largest workload, its prefix cache emptied before every run."""

from __future__ import annotations

from typing import Any

from protocol import Clock, serve

from workbench.config import EngineConfig
from workbench.engine.trace import StepTrace
from workbench.llm import LLM
from workbench.measure.result import warm_up
from workbench.sampling_params import SamplingParams


class Ours:
    def __init__(self, model: str, threads: int, quantization: str, tokens: int) -> None:
        """``tokens``: most that are held at once, so that the pool takes no more memory than it must."""
        block_size = 16
        config = EngineConfig(
            model=model,
            device="cpu",
            quantization=quantization,
            num_threads=threads,
            block_size=block_size,
            num_kv_blocks=tokens // block_size + 64,
        )
        self.llm = LLM(config)
        warm_up(self.llm)

    def info(self) -> dict[str, Any]:
        from workbench import __version__

        config = self.llm.config
        return {
            "version": __version__,
            "kv_cache": str(self.llm.runner.cache.storage.dtype).removeprefix("torch."),
            "context": f"one pool of {config.num_kv_blocks} blocks, {config.max_num_batched_tokens} tokens a step, "
            f"attention {self.llm.runner.decoder.attention.name}, prefix caching",
            "weight_bytes": self.llm.runner.cost.weight_bytes,
        }

    def run(self, prompts: list[list[int]], output_lens: list[int], head: int, clock: Clock) -> list[list[int]]:
        params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in output_lens]
        engine = self.llm.engine

        def watch(trace: StepTrace) -> None:
            if trace.new_tokens:
                clock.first()

        self.llm.reset_prefix_cache()
        engine.listeners.append(watch)
        try:
            clock.start()
            outputs = self.llm.generate(prompts, params, use_tqdm=False)
            clock.stop()
        finally:
            engine.listeners.remove(watch)
        return [output.token_ids for output in outputs]

    def logits(self, ids: list[int]) -> Any:
        return self.llm.runner.logits(ids).numpy()


if __name__ == "__main__":
    serve(Ours)
