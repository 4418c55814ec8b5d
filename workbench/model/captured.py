"""The captured step: a decode step recorded once and replayed, so that its hundreds of operations cost one call.

A step in which every request computes one token is always the same operations in the same order. What changes are
numbers: token ids, positions, slots, block tables, lengths. They lie in tensors that stay where they are (*static
addresses*). For each size of a batch (*bucket*) the step is recorded once; later it is enough to write the new numbers
and to replay. A batch between two buckets is filled up with rows of nobody: no keys to see, and slot −1, which is not
written. A batch larger than the largest bucket is not served, and computed operation by operation.

Who records is a `Recorder`: on a CPU a tape of native calls (`workbench.model.step_recorders`), on a GPU a CUDA graph
(`workbench.model.cuda_graphs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from workbench.attention.interface import AttentionBatch
from workbench.errors import UsageError
from workbench.model.batch import Batch
from workbench.model.decoder import Decoder
from workbench.model.kv_cache import KVCache
from workbench.model.step_inputs import StepInputs
from workbench.plan import StepPlan


class Recorded(NamedTuple):
    """``replay()`` carries out once more what was recorded; ``result`` then holds what that gave."""

    replay: Callable[[], None]
    result: torch.Tensor


class Recorder(Protocol):
    """Records the tensor operations of a function that looks at no value. Recording need not carry them out, and may
    carry them out more than once."""

    def record(self, run: Callable[[], torch.Tensor]) -> Recorded: ...


class CapturedSteps:
    """Decode steps of one decoder over one cache, by bucket.

    ``buckets``: sizes of batches, rising. ``max_model_len``: the longest request there may be. ``one_result``: the
    logits of all buckets are written to one tensor, so that what a recorded step allocates is free for the next one.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        recorder: Recorder,
        buckets: Sequence[int],
        max_model_len: int,
        one_result: bool = False,
    ) -> None:
        if not buckets or sorted(set(buckets)) != list(buckets) or buckets[0] < 1:
            raise UsageError(f"buckets {list(buckets)} must be sizes of batches from 1 on, rising")
        self.decoder = decoder
        self.cache = cache
        self.recorder = recorder
        self.buckets = list(buckets)
        self.recorded: dict[int, Recorded] = {}
        """By bucket, once it was needed."""
        width = -(-max_model_len // cache.block_size)
        self.inputs = StepInputs(self.buckets[-1], width, decoder.device)
        self._logits: torch.Tensor | None = None
        if one_result:
            shape = (self.buckets[-1], decoder.config.vocab_size)
            self._logits = torch.zeros(shape, dtype=torch.float32, device=decoder.device)

    def serves(self, plan: StepPlan) -> bool:
        """Whether every request of the plan computes the one token it lacks, and there are not too many."""
        return len(plan.scheduled) <= self.buckets[-1] and all(item.kind == "decode" for item in plan.scheduled)

    def bucket(self, num_requests: int) -> int:
        """The smallest bucket that holds so many."""
        return next(size for size in self.buckets if size >= num_requests)

    def record_all(self) -> None:
        """Records every bucket now, the largest first: what it allocates then has room for all others."""
        self.inputs.fill([], self.cache.block_size, self.buckets[-1])
        for size in reversed(self.buckets):
            self._recorded(size)

    def run(self, plan: StepPlan) -> torch.Tensor:
        """Carries out a plan that `serves`, after its block copies; writes the cache.

        Returns logits ``[num_requests, vocab_size]`` float32, which the next step overwrites.
        """
        size = self.bucket(len(plan.scheduled))
        self.inputs.fill(plan.scheduled, self.cache.block_size, size)
        recorded = self._recorded(size)
        recorded.replay()
        return recorded.result[: len(plan.scheduled)]

    def _recorded(self, size: int) -> Recorded:
        if size not in self.recorded:
            self.recorded[size] = self.recorder.record(lambda: self._step(size))
        return self.recorded[size]

    def _step(self, size: int) -> torch.Tensor:
        inputs = self.inputs
        attention = AttentionBatch(
            query_start=[],
            seq_lens=[],
            block_tables=inputs.tables[:size],
            block_size=self.cache.block_size,
            token_bytes=self.cache.token_bytes,
            starts=inputs.starts[: size + 1],
            lengths=inputs.lengths[:size],
        )
        rows = inputs.tokens[:size], inputs.positions[:size], inputs.slots[:size]
        batch = Batch(*rows, attention, sampled_rows=torch.empty(0, dtype=torch.int64, device=self.decoder.device))
        out = None if self._logits is None else self._logits[:size]
        return self.decoder.logits(self.decoder.forward(batch, self.cache), out)
