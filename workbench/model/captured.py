"""The captured step: a decode step recorded once and replayed, so that its hundreds of operations cost one call.

A step in which every request computes one token is always the same operations in the same order. What changes are
numbers: token ids, positions, slots, block tables, lengths. They lie in tensors that stay where they are (*static
addresses*). For each size of a batch (*bucket*) the step is recorded once; later it is enough to write the new numbers
and to replay. A batch between two buckets is filled up with rows of nobody: no keys to see, and slot −1, which is not
written. A batch larger than the largest bucket is not served, and computed operation by operation.

Who records is a `Recorder`: on a CPU a tape of native calls, on a GPU a CUDA graph (`workbench.model.cuda_graphs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from kernels.cpu.native import Scratch, Tape, suits
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


class TapeRecorder:
    """The CPU's: our own kernels on a tape, their results in memory that all tapes of this recorder share."""

    def __init__(self, rows: int) -> None:
        """``rows``: of the largest batch."""
        self.scratch = Scratch(rows)

    def record(self, run: Callable[[], torch.Tensor]) -> Recorded:
        tape = Tape(self.scratch)
        with tape.recording():
            result = run()
        return Recorded(tape.run, result)

    def once(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Carries out a step of any kind as one call: its threads meet hundreds of times without being woken each time.

        The result lies in the scratch and is overwritten by the next step.
        """
        recorded = self.record(run)
        recorded.replay()
        return recorded.result


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


def tape_recorder(decoder: Decoder, rows: int) -> TapeRecorder | None:
    """Who records steps of at most so many tokens on a CPU; None where our kernels do not compute all of a step."""
    return TapeRecorder(rows) if decoder.capturable and suits(decoder.norm) else None


def captured_steps(
    decoder: Decoder,
    cache: KVCache,
    max_num_seqs: int,
    max_model_len: int,
    sizes: Sequence[int] | None = None,
) -> CapturedSteps | None:
    """Who carries out decode steps on this device; None where nothing can be recorded.

    On a CPU each size of a batch has a tape of its own, made in milliseconds when it is first needed. On a GPU there is
    a CUDA graph for each of ``sizes`` (default: `cuda_graphs.capture_sizes`), and all are made now. Raises UsageError
    for sizes where there are no graphs, WorkbenchError where memory does not suffice.
    """
    if decoder.device.type == "cuda":
        from workbench.model import cuda_graphs  # which imports this module

        return cuda_graphs.graph_steps(decoder, cache, max_num_seqs, max_model_len, sizes)
    if sizes is not None:
        raise UsageError(
            f"cudagraph_capture_sizes={tuple(sizes)} has no effect on {decoder.device}, where there are no CUDA "
            "graphs: leave it out"
        )
    recorder = tape_recorder(decoder, max_num_seqs)
    if recorder is None:
        return None
    return CapturedSteps(decoder, cache, recorder, range(1, max_num_seqs + 1), max_model_len)
