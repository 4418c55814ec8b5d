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


class StepTime(NamedTuple):
    trace: StepTrace
    """One of the steps, ``duration`` being the median of all of them."""
    seconds: tuple[float, ...]


def step_times(llm: LLM, points: Sequence[Point], repeats: int = 5) -> list[StepTime]:
    """Each point's step ``repeats`` times, after one that warms up. The LLM must be idle.

    Raises UsageError for a point without work or one that the pool or the context does not hold.
    """
    return [_at(llm, point, repeats) for point in points]


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
