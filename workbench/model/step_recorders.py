"""Who records steps on which device: a tape of native calls on a CPU, CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernels.cpu.native import Scratch, Tape, suits
from workbench.errors import UsageError
from workbench.model.captured import CapturedSteps, Recorded
from workbench.model.cuda_graphs import graph_steps
from workbench.model.decoder import Decoder
from workbench.model.kv_cache import KVCache


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
        return graph_steps(decoder, cache, max_num_seqs, max_model_len, sizes)
    if sizes is not None:
        raise UsageError(
            f"cudagraph_capture_sizes={tuple(sizes)} has no effect on {decoder.device}, where there are no CUDA "
            "graphs: leave it out"
        )
    recorder = tape_recorder(decoder, max_num_seqs)
    if recorder is None:
        return None
    return CapturedSteps(decoder, cache, recorder, range(1, max_num_seqs + 1), max_model_len)
