"""llama.cpp through llama-cpp-python's low-level interface: one context, parallel sequences, greedy."""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from typing import Any

import llama_cpp
import llama_schedule
import numpy as np
from protocol import Clock, serve

BATCH = 2048
"""llama.cpp's own default (``n_batch``)."""


class LlamaCpp:
    """A GGUF file. Each run has a context of its own, made before its clock starts: nothing is cached from before."""

    def __init__(self, model: str, threads: int) -> None:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self.threads = threads
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.run([[1, 2, 3, 4]], [4], 0, Clock())

    def info(self) -> dict[str, Any]:
        return {
            "version": version("llama-cpp-python"),
            "kv_cache": "float16",
            "context": f"one, parallel sequences, n_batch {BATCH}",
        }

    def run(self, prompts: list[list[int]], output_lens: list[int], head: int, clock: Clock) -> list[list[int]]:
        lengths = [len(prompt) + output for prompt, output in zip(prompts, output_lens, strict=True)]
        context = Context(self, len(prompts), lengths, head)
        try:
            clock.start()
            answers = llama_schedule.serve(context, prompts, output_lens, head, clock.first)
            clock.stop()
            return answers
        finally:
            context.close()

    def logits(self, ids: list[int]) -> Any:
        context = Context(self, 1, [len(ids)], 0)
        try:
            rows = [llama_schedule.Row(token, at, 0, True) for at, token in enumerate(ids)]
            return np.concatenate(
                [context.logits(rows[at : at + context.n_batch]) for at in range(0, len(rows), context.n_batch)]
            )
        finally:
            context.close()


class Context:
    """A llama.cpp context as `llama_schedule` wants it. Sequences that share a head share one KV buffer; others have
    one each, which is faster: attention then never looks at a neighbour's keys."""

    n_batch = BATCH

    def __init__(self, llama: LlamaCpp, num_sequences: int, lengths: list[int], head: int) -> None:
        params = llama_cpp.llama_context_default_params()
        shared = bool(head)
        longest = -(-max(lengths) // 256) * 256
        params.n_ctx = longest + sum(lengths) if shared else longest * num_sequences
        params.n_batch = self.n_batch
        params.n_seq_max = num_sequences
        params.kv_unified = shared
        params.n_threads = params.n_threads_batch = llama.threads
        self.pointer = llama_cpp.llama_init_from_model(llama.model, params)
        if not self.pointer:
            raise RuntimeError(f"llama.cpp makes no context of {params.n_ctx} tokens for {num_sequences} sequences")
        self.memory = llama_cpp.llama_get_memory(self.pointer)
        self.batch = llama_cpp.llama_batch_init(self.n_batch, 0, 1)
        self.vocab_size = llama.vocab_size

    def decode(self, rows: list[llama_schedule.Row]) -> list[int]:
        return [int(token) for token in self.logits(rows).argmax(axis=1)]

    def logits(self, rows: list[llama_schedule.Row]) -> Any:
        """Those of the rows that are wanted, ``[wanted, vocab_size]``; they are the caller's."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for at, row in enumerate(rows):
            batch.token[at], batch.pos[at], batch.logits[at] = row.token, row.position, row.wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, row.sequence
        if status := llama_cpp.llama_decode(self.pointer, batch):
            raise RuntimeError(f"llama_decode says {status} for {len(rows)} tokens")
        wanted = sum(row.wanted for row in rows)
        if not wanted:
            llama_cpp.llama_synchronize(self.pointer)
            return np.empty((0, self.vocab_size), np.float32)
        found = llama_cpp.llama_get_logits(self.pointer)
        return np.ctypeslib.as_array(
            ctypes.cast(found, ctypes.POINTER(ctypes.c_float)), (wanted, self.vocab_size)
        ).copy()

    def copy(self, source: int, target: int, length: int) -> None:
        llama_cpp.llama_memory_seq_cp(self.memory, source, target, 0, length)

    def drop(self, sequence: int) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.pointer)


if __name__ == "__main__":
    serve(LlamaCpp)
