"""Steps of one kind, made by the real engine, for notebooks to measure: a prompt in one step, a batch that decodes."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.measure.timing import Timing
from workbench.sampling_params import SamplingParams

if TYPE_CHECKING:
    from workbench.engine.engine import Engine
    from workbench.lab.lesson import Lesson
    from workbench.llm import LLM


class Decodes(NamedTuple):
    """Steps in which a batch decodes, and how long one took."""

    traces: list[StepTrace]
    time: Timing


def prefill_step(lesson: Lesson, llm: LLM, num_tokens: int, repeats: int = 3, num_prompts: int = 1) -> Timing:
    """How long a step takes that computes ``num_prompts`` whole prompts of ``num_tokens`` random tokens each, and
    samples once for each.

    One more step than ``repeats`` is run; the first warms up.
    """
    total = num_prompts * num_tokens
    engine = lesson.engine(llm, max_num_batched_tokens=max(total, llm.config.max_num_batched_tokens))
    seconds = []
    for repeat in range(repeats + 1):
        for index in range(num_prompts):
            engine.add_request(_prompt(llm, num_tokens, repeat * num_prompts + index), _answer(1))
        trace = engine.step()
        if engine.has_unfinished():
            raise UsageError(
                f"{num_prompts} × {num_tokens} prompt tokens do not fit into one step of this engine: take fewer"
            )
        seconds.append(trace.duration)
    return Timing(tuple(seconds[1:]))


def decode_steps(lesson: Lesson, llm: LLM, batch: int, context: int, steps: int = 8) -> Decodes:
    """``steps`` steps in which ``batch`` requests decode together, each after a random prompt of ``context`` tokens.

    If the engine holds fewer requests at once than ``batch`` (``max_num_seqs``), the steps hold as many as it does.
    Steps that also compute prompts are left out, and so is the first one that does not: it warms up. Raises UsageError
    for a batch or steps below 1.
    """
    for name, count in (("batch", batch), ("steps", steps)):
        if type(count) is not int or count < 1:
            raise UsageError(f"{name}={count!r}: give a whole number of at least 1")
    engine = lesson.engine(llm)
    # Who is computed first decodes already while the last prompts are computed.
    head_start = -(-batch * context // engine.config.max_num_batched_tokens)
    for index in range(batch):
        engine.add_request(_prompt(llm, context, index), _answer(head_start + steps + 2))
    traces = [trace for trace in _run(engine) if all(item["kind"] == "decode" for item in trace.scheduled)]
    most = max(len(trace.scheduled) for trace in traces)
    kept = [trace for trace in traces if len(trace.scheduled) == most][1 : steps + 1]
    return Decodes(kept, Timing(tuple(trace.duration for trace in kept)))


def decode_in_turn(
    lesson: Lesson, llm: LLM, batches: Sequence[int], context: int, rounds: int = 2, steps: int = 4
) -> dict[int, Decodes]:
    """`decode_steps` of several batch sizes in turn, round after round, so that a slow moment of the machine does not
    fall on one size alone. Each size has the steps of all its rounds."""
    turns = [{batch: decode_steps(lesson, llm, batch, context, steps) for batch in batches} for _ in range(rounds)]
    return {
        batch: Decodes(
            [trace for turn in turns for trace in turn[batch].traces],
            Timing(tuple(second for turn in turns for second in turn[batch].time.seconds)),
        )
        for batch in batches
    }


def operations_in_a_decode_step(lesson: Lesson, llm: LLM) -> int:
    """How many functions of torch Python calls in a step in which one request decodes; reading a shape is none."""
    from torch.overrides import TorchFunctionMode

    class Count(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += getattr(func, "__name__", "") != "__get__"
            return func(*args, **(kwargs or {}))

    engine = lesson.engine(llm)
    engine.add_request(_prompt(llm, 16, 0), _answer(2))
    engine.step()
    with Count() as counted:
        engine.step()
    return counted.calls


def kernels_in_a_decode_step(lesson: Lesson, llm: LLM) -> Counter[str]:
    """What Python has carried out in a step in which one request decodes, by name: operations of torch that move
    numbers, and calls of our C++ and Triton kernels. A tape that is replayed is one call, whatever is on it."""
    from workbench.measure import torch_traffic

    engine = lesson.engine(llm)
    engine.add_request(_prompt(llm, 16, 0), _answer(3))
    for _ in range(2):  # where decode steps are recorded, the first one records
        engine.step()
    with torch_traffic.counting() as operations, _own_kernels() as ours:
        engine.step()
    return Counter([one.op for one in operations] + ours)


@contextmanager
def _own_kernels() -> Iterator[list[str]]:
    """Within it every call of a C++ kernel and every launch of a Triton kernel adds its name to the list."""
    from kernels.cpu import native

    names: list[str] = []
    function = native.function

    def found(name: str, *signature: str) -> Any:
        names.append(name)
        return function(name, *signature)

    native.function = found
    try:
        with _launches(names):
            yield names
    finally:
        native.function = function


@contextmanager
def _launches(names: list[str]) -> Iterator[None]:
    if "triton" not in sys.modules:  # then nobody launches
        yield
        return
    from triton.runtime.jit import KernelInterface

    getitem = KernelInterface.__getitem__

    def found(kernel: Any, grid: Any) -> Any:
        names.append(kernel.__name__)
        return getitem(kernel, grid)

    KernelInterface.__getitem__ = found
    try:
        yield
    finally:
        KernelInterface.__getitem__ = getitem


def _run(engine: Engine) -> list[StepTrace]:
    traces = []
    while engine.has_unfinished():
        traces.append(engine.step())
    return traces


def _prompt(llm: LLM, length: int, index: int) -> list[int]:
    """Random, and another one for each index, so that no two share a beginning."""
    draw = random.Random(index)
    return [draw.randrange(llm.model_config.vocab_size) for _ in range(length)]


def _answer(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
