"""Replays a recorded run through the scheduler: the same arrivals and tokens must give the same plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from workbench.checks import as_token_ids, shown
from workbench.config import EngineConfig, from_options
from workbench.engine.admission import QueueFull
from workbench.engine.clock import VirtualClock
from workbench.engine.engine import Engine
from workbench.engine.trace import StepTrace, damaged, read_run
from workbench.errors import UsageError
from workbench.plan import StepPlan, StepResult
from workbench.sampling_params import SamplingParams

DECISIONS = ("scheduled", "skipped", "preempted", "finished", "blocks", "cached_tokens", "new_tokens", "held",
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
    """Runs a recorded run again, step by step. ``changes`` replace engine options, to see where the plans part.

    Raises WorkbenchError that names the file and the line for a recording that is damaged, UsageError for changes that
    are wrong or that a recorded request cannot live with.
    """
    header, steps = read_run(path)
    runner = _RecordedTokens()
    clock = VirtualClock()
    config = _config(path, header).replace(**changes)
    if config.enable_prefix_caching and header.get("num_cached_blocks"):
        raise UsageError(
            f"{path} was recorded with {shown(header['num_cached_blocks'])} blocks cached before its first step, which "
            "it does not tell of: record again after reset_prefix_cache(), or replay with enable_prefix_caching=False"
        )
    engine = Engine(
        config,
        runner,
        clock=clock,
        eos_token_ids=_eos(path, header),
        open_text=lambda request_id, params: _RecordedText(runner, request_id),
    )
    engine.more_may_come = header.get("more_may_come") is True
    for line, recorded in enumerate(steps, 2):
        clock.advance_to(recorded.time)
        late = [event for event in recorded.inputs if event.get("during_step")]
        runner.tokens = {new["request_id"]: new["token_id"] for new in recorded.new_tokens}
        runner.stopped = {done["request_id"] for done in recorded.finished if done["reason"] == "stop"}
        runner.meanwhile = partial(_take_in, engine, late)
        try:
            _take_in(engine, [event for event in recorded.inputs if event not in late])
            replayed = engine.step()
        except UsageError as error:
            if changes:
                raise
            raise damaged(path, line, error) from None
        yield Replayed(recorded, replayed)


def _config(path: str | Path, header: dict[str, Any]) -> EngineConfig:
    options = header.get("config")
    if not isinstance(options, dict):
        raise damaged(path, 1, f"config={shown(options)} must be an object with the engine's options")
    try:
        config = from_options(options)
    except UsageError as error:
        raise damaged(path, 1, error) from None
    if config.num_kv_blocks is None or config.max_model_len is None:
        raise damaged(path, 1, "config lacks num_kv_blocks or max_model_len")
    return config


def _eos(path: str | Path, header: dict[str, Any]) -> tuple[int, ...]:
    given = header.get("eos_token_ids")
    found = as_token_ids(given) if isinstance(given, list) else None
    if found is None:
        raise damaged(path, 1, f"eos_token_ids={shown(given)} must be a list of token ids")
    return found


def _take_in(engine: Engine, events: list[dict[str, Any]]) -> None:
    for event in events:
        if "abort" in event:
            engine.abort(event["abort"])
        elif "more_may_come" in event:
            engine.more_may_come = event["more_may_come"]
        elif "reset_prefix_cache" in event:
            engine.reset_prefix_cache()
        elif "kv_fields" in event:
            engine.use_kv_fields(**{name: str(value) for name, value in event["kv_fields"].items()})
        elif "fork_of" not in (added := event.get("add") or event["refused"]):  # else its first answer brings it along
            params = SamplingParams.from_dict(added["params"])
            with suppress(QueueFull):
                engine.add_request(
                    added["prompt_token_ids"],
                    params,
                    added["request_id"],
                    priority=added.get("priority", 0),
                    arrival_time=added["arrival_time"],
                    cache_salt=added.get("cache_salt") if engine.cache else None,
                )
