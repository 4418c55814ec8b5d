"""How long chosen steps of the real engine take: a batch that decodes, alone or beside a chunk of a prompt."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from workbench.engine.trace import StepTrace
from workbench.errors import UsageError
from workbench.llm import LLM
from workbench.sampling_params import SamplingParams


class Point(NamedTuple):
    """A step: ``batch`` requests decode, each with ``context`` tokens, and a prompt of ``chunk`` tokens is computed."""

    batch: int
    context: int
    chunk: int = 0


CALIBRATION = (
    *(Point(batch, context) for batch, context in ((1, 32), (1, 512), (4, 512), (16, 32), (16, 128))),
    *(Point(0, 0, chunk) for chunk in (16, 128, 512)),
    Point(4, 256, 64),
    Point(8, 128, 256),
)
"""Steps to take a cost model's numbers from: the corners of what `HELD_OUT` lies between, so that each shows."""
_GRID = (
    Point(1, 128),
    *(Point(batch, context) for batch in (2, 4, 8) for context in (32, 128, 512) if batch * context <= 2048),
    *(Point(0, 0, chunk) for chunk in (64, 256)),
    *(Point(batch, context, chunk) for batch, context in ((2, 64), (4, 256), (8, 128)) for chunk in (16, 64, 256)),
)
HELD_OUT = tuple(point for point in _GRID if point not in CALIBRATION)
"""Steps to judge it by: none of the others is among them."""


class StepTime(NamedTuple):
    trace: StepTrace
    """One of the steps, ``duration`` being the median of all of them."""
    seconds: tuple[float, ...]


def step_times(llm: LLM, points: Sequence[Point], repeats: int = 5) -> list[StepTime]:
    """Each point's step ``repeats`` times, after one that warms up. The LLM must be idle.

    Raises UsageError for a point without work or one that the pool or the context does not hold.
    """
    return [_at(llm, point, repeats) for point in points]


def time_steps(llm: LLM, repeats: int = 7) -> tuple[dict[Point, StepTrace], dict[Point, StepTrace]]:
    """The steps of `CALIBRATION` and those of `HELD_OUT`: one to two minutes on a CPU. The LLM must be idle.

    Raises UsageError if its pool or context does not hold them (1,024 blocks of 16 and 1,024 tokens do).
    """
    order = [*CALIBRATION, *HELD_OUT]
    random.Random(0).shuffle(order)  # so that a spell of other work on the machine does not hit one kind of step
    traces = {point: time.trace for point, time in zip(order, step_times(llm, order, repeats), strict=True)}
    return {point: traces[point] for point in CALIBRATION}, {point: traces[point] for point in HELD_OUT}


def _at(llm: LLM, point: Point, repeats: int) -> StepTime:
    batch, context, chunk = point
    if repeats < 1 or batch < 0 or chunk < 0 or batch + chunk == 0 or (batch and context < 1):
        raise UsageError(f"{point} × {repeats} is no step: let a batch decode, or a chunk be computed, at least once")
    engine = llm.new_engine(
        max_num_seqs=batch + 1, max_num_batched_tokens=max(batch + chunk, 512), enable_chunked_prefill=True
    )
    draw = random.Random(f"{point}")
    vocab_size = llm.model_config.vocab_size

    def ask(length: int, answer: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        engine.add_request([draw.randrange(vocab_size) for _ in range(length)], params)

    # The first of the batch decode while the last are computed, so the batch needs tokens to spare.
    spare = -(-batch * context // 512) + batch
    for _ in range(batch):
        ask(max(context - spare // 2, 1), repeats + spare + 3)
    while engine.has_unfinished():
        if sum(item["kind"] == "decode" for item in engine.step().scheduled) == batch:
            break
    traces: list[StepTrace] = []
    for _ in range(repeats + 1):
        if chunk:
            ask(chunk, 1)
        traces.append(engine.step())
    for request_id in list(engine.requests):
        engine.abort(request_id)
    engine.step()
    for trace in traces:
        if sum(item["num_tokens"] for item in trace.scheduled) != batch + chunk:
            raise UsageError(f"{point} does not fit into one step of this engine: take fewer or shorter requests")
    kept = traces[1:]
    seconds = tuple(trace.duration for trace in kept)
    middle = kept[len(kept) // 2]
    middle.duration = statistics.median(seconds)
    return StepTime(middle, seconds)
