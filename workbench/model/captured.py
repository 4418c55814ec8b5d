"""The captured step: a decode step recorded once and replayed, so that its hundreds of operations cost one call.

A step in which every request computes one token is always the same operations in the same order. What changes are
numbers: token ids, positions, slots, block tables, lengths. They lie in tensors that stay where they are (*static
addresses*). For each size of a batch (*bucket*) the step is recorded on its first use; later it is enough to write the
new numbers and to replay. A batch between two buckets is filled up with copies of its first row, which compute and
write once more what that row computes and writes.

Who records is a `Recorder`: on a CPU a tape of native calls, on a GPU a CUDA graph.
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
from workbench.plan import StepPlan


class Recorded(NamedTuple):
    """``replay()`` carries out once more what was recorded; ``result`` then holds what that gave."""

    replay: Callable[[], None]
    result: torch.Tensor


class Recorder(Protocol):
    """Records the tensor operations of a function that looks at no value. Recording need not carry them out."""

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

    ``buckets``: sizes of batches, rising. ``max_model_len``: the longest request there may be.
    """

    def __init__(
        self, decoder: Decoder, cache: KVCache, recorder: Recorder, buckets: Sequence[int], max_model_len: int
    ) -> None:
        if not buckets or sorted(set(buckets)) != list(buckets) or buckets[0] < 1:
            raise UsageError(f"buckets {list(buckets)} must be sizes of batches from 1 on, rising")
        self.decoder = decoder
        self.cache = cache
        self.recorder = recorder
        self.buckets = list(buckets)
        self.recorded: dict[int, Recorded] = {}
        """By bucket, once it was needed."""
        most, device = self.buckets[-1], decoder.device
        self._tokens, self._positions, self._slots = (
            torch.zeros(most, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._lengths = torch.ones(most, dtype=torch.int32, device=device)
        width = -(-max_model_len // cache.block_size)
        self._tables = torch.zeros(most, width, dtype=torch.int64, device=device)

    def serves(self, plan: StepPlan) -> bool:
        """Whether every request of the plan computes the one token it lacks, and there are not too many."""
        return len(plan.scheduled) <= self.buckets[-1] and all(item.kind == "decode" for item in plan.scheduled)

    def bucket(self, num_requests: int) -> int:
        """The smallest bucket that holds so many."""
        return next(size for size in self.buckets if size >= num_requests)

    def run(self, plan: StepPlan) -> torch.Tensor:
        """Carries out a plan that `serves`, after its block copies; writes the cache.

        Returns logits ``[num_requests, vocab_size]`` float32, which the next step overwrites.
        """
        size = self.bucket(len(plan.scheduled))
        self._fill(plan, size)
        if size not in self.recorded:
            self.recorded[size] = self.recorder.record(lambda: self._step(size))
        self.recorded[size].replay()
        return self.recorded[size].result[: len(plan.scheduled)]

    def _step(self, size: int) -> torch.Tensor:
        attention = AttentionBatch(
            query_start=[],
            seq_lens=[],
            block_tables=self._tables[:size],
            block_size=self.cache.block_size,
            token_bytes=self.cache.token_bytes,
            starts=self._starts[: size + 1],
            lengths=self._lengths[:size],
        )
        rows = self._tokens[:size], self._positions[:size], self._slots[:size]
        batch = Batch(*rows, attention, sampled_rows=torch.empty(0, dtype=torch.int64, device=self._tokens.device))
        return self.decoder.logits(self.decoder.forward(batch, self.cache))

    def _fill(self, plan: StepPlan, size: int) -> None:
        """Writes the plan's numbers to where the recorded operations read them."""
        block_size = self.cache.block_size
        items = list(plan.scheduled) + [plan.scheduled[0]] * (size - len(plan.scheduled))
        tables = [item.request.block_table for item in items]
        starts = [item.start for item in items]
        tokens = [item.request.token_ids[item.start] for item in items]
        slots = [
            table[start // block_size] * block_size + start % block_size
            for table, start in zip(tables, starts, strict=True)
        ]
        width = max(map(len, tables))
        self._tables[:size, :width] = torch.tensor([table + table[:1] * (width - len(table)) for table in tables])
        self._tokens[:size] = torch.tensor(tokens)
        self._positions[:size] = torch.tensor(starts)
        self._slots[:size] = torch.tensor(slots)
        self._lengths[:size] = torch.tensor([start + 1 for start in starts], dtype=torch.int32)


def tape_recorder(decoder: Decoder, rows: int) -> TapeRecorder | None:
    """Who records steps of at most so many tokens on a CPU; None where our kernels do not compute all of a step."""
    return TapeRecorder(rows) if decoder.capturable and suits(decoder.norm) else None


def captured_steps(decoder: Decoder, cache: KVCache, max_num_seqs: int, max_model_len: int) -> CapturedSteps | None:
    """Who carries out decode steps on this device; None where nothing can be recorded.

    On a CPU each size of a batch has a tape of its own, made in milliseconds when it is first needed.
    """
    recorder = tape_recorder(decoder, max_num_seqs)
    if recorder is None:
        return None
    return CapturedSteps(decoder, cache, recorder, range(1, max_num_seqs + 1), max_model_len)
