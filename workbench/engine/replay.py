"""Replays a recorded run through the scheduler: the same arrivals and tokens must give the same plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from workbench.config import EngineConfig
from workbench.engine.clock import VirtualClock
from workbench.engine.engine import Engine
from workbench.engine.trace import StepTrace, read_run
from workbench.plan import StepPlan, StepResult
from workbench.sampling_params import SamplingParams

DECISIONS = ("scheduled", "skipped", "preempted", "finished", "blocks", "cached_tokens", "new_tokens",
             "num_waiting", "num_running")  # fmt: skip
"""The fields of a trace that the scheduler decides; times and costs belong to the machine it ran on."""


class Replayed(NamedTuple):
    recorded: StepTrace
    replayed: StepTrace

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The decisions that differ: ``{field: (recorded, replayed)}``; empty when the step is the same."""
        pairs = {name: (getattr(self.recorded, name), getattr(self.replayed, name)) for name in DECISIONS}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class _RecordedTokens:
    """A runner that samples what was sampled then; 0 where the replay asks for a token that was not recorded."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.stopped: set[str] = set()
        """The requests that ended by ``stop`` with these tokens."""
        self.meanwhile: Callable[[], None] = lambda: None
        """What happened while the step was computed."""

    def execute(self, plan: StepPlan) -> StepResult:
        self.meanwhile()
        return StepResult(
            [self.tokens.get(item.request.request_id, 0) if item.samples else None for item in plan.scheduled]
        )


class _RecordedText:
    """Stands for the text of every answer: a stop string is complete where the recorded request ended by one."""

    def __init__(self, recorded: _RecordedTokens, request_id: str) -> None:
        self._recorded, self._request_id = recorded, request_id

    def push(self, token_id: int, may_stop: bool) -> bool:
        return may_stop and self._request_id in self._recorded.stopped

    def finish(self) -> None:
        pass


def replay(path: str | Path, **changes: Any) -> Iterator[Replayed]:
    """Runs a recorded run again, step by step. ``changes`` replace engine options, to see where the plans part."""
    header, steps = read_run(path)
    config = EngineConfig(**header["config"]).replace(**changes)
    runner = _RecordedTokens()
    engine = Engine(
        config,
        runner,
        clock=VirtualClock(),
        eos_token_ids=header["eos_token_ids"],
        open_text=lambda request_id, params: _RecordedText(runner, request_id),
    )
    for recorded in steps:
        late = [event for event in recorded.inputs if event.get("during_step")]
        _take_in(engine, [event for event in recorded.inputs if event not in late])
        runner.meanwhile = partial(_take_in, engine, late)
        runner.tokens = {new["request_id"]: new["token_id"] for new in recorded.new_tokens}
        runner.stopped = {done["request_id"] for done in recorded.finished if done["reason"] == "stop"}
        yield Replayed(recorded, engine.step())


def _take_in(engine: Engine, events: list[dict[str, Any]]) -> None:
    for event in events:
        if "abort" in event:
            engine.abort(event["abort"])
        else:
            added = event["add"]
            if "fork_of" in added:
                continue  # its first answer's event brought it along
            params = SamplingParams.from_dict(added["params"])
            engine.add_request(
                added["prompt_token_ids"], params, added["request_id"], arrival_time=added["arrival_time"]
            )
