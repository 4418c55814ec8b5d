"""CUDA graphs: a decode step's hundreds of launches recorded by the driver, and replayed as one.

A launch costs the host some microseconds, a Triton kernel's more, and a small model's decode step is hundreds of
launches of a few microseconds each: the GPU would wait for Python. A graph is recorded by running the step once while
the driver notes down what it is given (*capture*); it holds addresses and not numbers, so inputs and result stay where
they are. Everything that may not happen during a capture happens in a run before it: Triton compiles for this size of a
batch, cuBLAS takes its workspace.

All graphs take their memory from one pool and run one after the other, so what one needs for its intermediate results
serves all; the largest is captured first. `graph_bytes` says beforehand what to leave free for them,
`GraphRecorder.bytes` what they took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.triton import launch
from workbench.errors import UsageError, WorkbenchError
from workbench.model.captured import CapturedSteps, Recorded
from workbench.model.config import ModelConfig
from workbench.model.decoder import Decoder
from workbench.model.kv_cache import KVCache

LARGEST = 512
"""The largest default bucket: beyond it a step computes for so long that launches are hidden behind it."""
MIXTURE = "a mixture of experts looks at how many tokens each expert has"
GRAPH_BYTES = 8 << 20
"""What the driver may need for one graph's nodes: an allowance, not a measurement."""
WORKSPACE_BYTES = 64 << 20
"""cuBLAS takes 32 MiB for a stream on Hopper, and as much for batched products: an allowance too."""


def capture_sizes(max_num_seqs: int, wanted: Sequence[int] | None = None) -> list[int]:
    """The buckets, rising: ``wanted`` (vLLM's ``cudagraph_capture_sizes``), or vLLM's defaults 1, 2, 4, 8, 16, … 248 in
    steps of 8 and on in steps of 16, up to 512.

    The defaults end at ``max_num_seqs`` itself, so that no batch falls into a gap above the last multiple. Raises
    UsageError for a size that no batch can have.
    """
    if wanted is not None:
        if beyond := [size for size in wanted if size > max_num_seqs]:
            raise UsageError(
                f"cudagraph_capture_sizes: {beyond[0]} is beyond max_num_seqs={max_num_seqs}, so no batch is that "
                "large: leave it out or raise max_num_seqs"
            )
        return sorted(wanted)
    most = min(max_num_seqs, LARGEST)
    return sorted({size for size in (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST + 1, 16)) if size < most} | {most})


def graph_bytes(config: ModelConfig, sizes: Sequence[int], dtype: torch.dtype) -> int:
    """About what capturing these sizes takes of the GPU's memory, an upper estimate in bytes: the intermediate results
    of the largest batch, where no more than two layers' exist at once, its logits in ``dtype`` and float32, and an
    allowance for each graph and for cuBLAS."""
    heads = config.num_heads + 2 * config.num_kv_heads
    row = 4 * config.hidden_size + 2 * heads * config.head_dim + 3 * config.intermediate_size + config.vocab_size
    largest = max(sizes) * (2 * row * dtype.itemsize + config.vocab_size * 4)
    return largest + len(sizes) * GRAPH_BYTES + WORKSPACE_BYTES


class GraphRecorder:
    """The GPU's `workbench.model.captured.Recorder`."""

    def __init__(self, device: torch.device, cuda: Any = None) -> None:
        """``cuda``: ``torch.cuda``, or what stands in for it in a test."""
        self.cuda = cuda = torch.cuda if cuda is None else cuda
        self.device = device
        self.stream = cuda.Stream(device)
        self.pool = cuda.graph_pool_handle()
        self.bytes = 0
        """What the captures so far have taken of the GPU's memory."""

    def record(self, run: Callable[[], torch.Tensor]) -> Recorded:
        """Carries out ``run`` once and then captures it. What it returns must lie where later captures cannot put
        something else. Raises WorkbenchError when the memory does not suffice."""
        cuda, before = self.cuda, self._free()
        try:
            self.stream.wait_stream(cuda.current_stream(self.device))
            with cuda.stream(self.stream):
                run()
            cuda.current_stream(self.device).wait_stream(self.stream)
            graph = cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile: only this one's calls are forbidden.
            with cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                result = run()
        except torch.OutOfMemoryError as error:
            raise WorkbenchError(
                f"CUDA graphs: {before / 1e9:.2f} GB of GPU memory were free and one more graph did not fit: lower "
                "gpu_memory_utilization or max_num_seqs, give fewer cudagraph_capture_sizes, or use enforce_eager"
            ) from error
        self.bytes += max(0, before - self._free())
        return Recorded(graph.replay, result)

    def _free(self) -> int:
        return int(self.cuda.mem_get_info(self.device)[0])


def cannot_capture(decoder: Decoder) -> str:
    """Why this decoder's steps cannot be recorded as CUDA graphs; empty if they can."""
    if decoder.device.type != "cuda":
        return f"there are no CUDA graphs on {decoder.device}"
    if not decoder.attention.capturable:
        return f"attention by {decoder.attention.name} looks at lengths on the host"
    if not decoder.capturable:
        return MIXTURE
    return launch.cannot_run(decoder.device)


def graph_steps(
    decoder: Decoder, cache: KVCache, max_num_seqs: int, max_model_len: int, wanted: Sequence[int] | None
) -> CapturedSteps | None:
    """Decode steps as CUDA graphs, all captured; None where ``wanted`` is None and they cannot be. Raises UsageError
    where sizes are wanted and cannot be captured, WorkbenchError when the memory does not suffice."""
    if reason := cannot_capture(decoder):
        if wanted is not None:
            raise UsageError(f"cudagraph_capture_sizes={tuple(wanted)} has no effect here: {reason}; leave it out")
        return None
    sizes = capture_sizes(max_num_seqs, wanted)
    recorder = GraphRecorder(decoder.device)
    steps = CapturedSteps(decoder, cache, recorder, sizes, max_model_len, one_result=True)
    with torch.inference_mode():
        steps.record_all()
    return steps
