"""A `torch.cuda` whose graphs can be captured without a GPU: what a capture saw is carried out again, and nothing else.

While a graph is captured every operation of torch is noted down with the tensors it was given and the one it made. A
replay carries out that list, on those same tensors, and writes each result to where it lay; no Python of the step runs.
So a number that came from the host and not from a static tensor stays what it was, as in a real graph. What the driver
refuses during a capture is refused: asking for a value, results whose size depends on values, copies between host and
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "lift_fresh", "_pin_memory")


class NotPermitted(RuntimeError):
    """What CUDA says as: operation not permitted when stream is capturing."""


class _Noting(TorchDispatchMode):
    def __init__(self, notes: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]]) -> None:
        super().__init__()
        self.notes = notes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name.removeprefix("aten::")
        if name in FORBIDDEN:
            raise NotPermitted(f"{name}: operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        devices = {
            tensor.device.type for tensor in tensors((args, kwargs, result)) if tensor.ndim or name == "_to_copy"
        }
        if len(devices) > 1:
            raise NotPermitted(f"{name} between devices {sorted(devices)}: not permitted when stream is capturing")
        self.notes.append((func, args, kwargs or {}, result))
        return result


class Graph:
    def __init__(self) -> None:
        self.notes: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, result in self.notes:
            again = func(*args, **kwargs)
            given = {tensor.untyped_storage()._cdata for tensor in tensors((args, kwargs))}
            for old, new in zip(tensors(result), tensors(again), strict=True):
                if old.untyped_storage()._cdata not in given:  # else a view, or written in place
                    old.copy_(new)


class FakeCuda:
    """``free``: bytes that are free; each capture takes ``takes`` of them, and fails where there are too few."""

    CUDAGraph = Graph

    def __init__(self, free: int = 1 << 30, takes: int = 1 << 20) -> None:
        self.free, self.takes = free, takes
        self.captured: list[Graph] = []
        self.log: list[str] = []

    def Stream(self, device: torch.device) -> FakeStream:
        return FakeStream(self.log, "side")

    def current_stream(self, device: torch.device) -> FakeStream:
        return FakeStream(self.log, "current")

    def graph_pool_handle(self) -> tuple[int, int]:
        self.log.append("pool")
        return (0, 1)

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return self.free, 1 << 34

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.log.append("warm-up")
        yield

    @contextmanager
    def graph(self, graph: Graph, pool: tuple[int, int], stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        assert pool == (0, 1) and capture_error_mode == "thread_local"
        self.log.append("capture")
        if self.free < self.takes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.free -= self.takes
        with _Noting(graph.notes):
            yield
        self.captured.append(graph)


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]
