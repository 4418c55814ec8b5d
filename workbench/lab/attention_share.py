"""The part of a decode step that attention takes: what a better attention kernel can win at most."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.errors import UsageError
from workbench.lab.steps import decode_steps
from workbench.measure.timing import Timing

if TYPE_CHECKING:
    from workbench.lab.lesson import Lesson
    from workbench.llm import LLM


class AttentionShare(NamedTuple):
    attention: Timing
    """Of all layers' calls, in each step."""
    step: Timing

    @property
    def share(self) -> float:
        """Of a step's time; the median of all steps, so that a slow moment of the machine counts once."""
        return median(own / all_ for own, all_ in zip(self.attention.seconds, self.step.seconds, strict=True))

    def faster(self, kernel: float) -> float:
        """How many times faster a step is with an attention kernel that is ``kernel`` times as fast (Amdahl)."""
        return 1 / (1 - self.share + self.share / kernel)


def attention_share(lesson: Lesson, llm: LLM, batch: int, context: int, steps: int = 4) -> AttentionShare:
    """Timed call by call in the real engine, so ``llm`` must be opened with ``enforce_eager=True``; else raises
    UsageError. On a GPU the device is waited for before and after each call."""
    if not llm.config.enforce_eager:
        raise UsageError("a recorded step calls no attention that could be timed: open the LLM with enforce_eager=True")
    with _timed(llm) as calls:
        decoded = decode_steps(lesson, llm, batch, context, steps)
    layers, seconds = llm.model_config.num_layers, []
    each = [sum(calls[at : at + layers]) for at in range(0, len(calls), layers)]
    for trace in decoded.traces:
        seconds.append(each[trace.step])
    return AttentionShare(Timing(tuple(seconds)), decoded.time)


@contextmanager
def _timed(llm: LLM) -> Iterator[list[float]]:
    """Within it every call of the model's attention adds its seconds to the list."""
    import torch

    device, backend = llm.runner.decoder.device, type(llm.runner.decoder.attention)
    own, calls = backend.attend, list[float]()

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def timed(self: Any, *inputs: Any, **named: Any) -> Any:
        begin = now()
        out = own(self, *inputs, **named)
        calls.append(now() - begin)
        return out

    backend.attend = timed  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        backend.attend = own  # type: ignore[method-assign]
