"""StepTrace: everything that happened in one step, as data; and a run of them as JSONL.

Metrics, widgets, tests, replay and the simulator read traces; none of them reaches into the engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from workbench.errors import WorkbenchError

SCHEMA_VERSION = 1


@dataclass(slots=True)
class StepTrace:
    """One step. Times are seconds of the engine's clock; lists hold plain dicts, so a trace is JSON as it stands."""

    step: int
    time: float
    duration: float
    scheduled: list[dict[str, Any]]
    """``{request_id, num_tokens, num_computed_tokens, kind}``: tokens computed in this step and before it."""
    skipped: list[dict[str, str]]
    """``{request_id, reason}``: who was left out and why."""
    preempted: list[str]
    finished: list[dict[str, str]]
    """``{request_id, reason}``: ``stop``, ``length`` or ``abort``."""
    blocks: dict[str, int]
    """``{allocated, freed, shared, evicted, free, total}``: the first four since the step before, then the pool now."""
    cached_tokens: int
    new_tokens: list[dict[str, Any]]
    """``{request_id, token_id}``"""
    flops: int = 0
    bytes: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of ``schedule, prepare, forward, sample, commit, detokenize``."""
    num_waiting: int = 0
    num_running: int = 0
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """What came in since the step before, in order: ``{"add": {request_id, prompt_token_ids, params, …}}`` or
    ``{"abort": request_id}``; with ``"during_step": true`` what came while this step was computed. With them a run can
    be replayed."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StepTrace:
        return cls(**json.loads(text))


class TraceWriter:
    """Writes a run to a file: one header line, then one line a step. A listener of an engine and a context manager."""

    def __init__(self, path: str | Path, header: dict[str, Any]) -> None:
        self._file: TextIO = open(path, "w", encoding="utf-8")
        self._file.write(json.dumps({"schema_version": SCHEMA_VERSION, **header}) + "\n")

    def __call__(self, trace: StepTrace) -> None:
        if not self._file.closed:  # an engine goes on after a recording has ended
            self._file.write(trace.to_json() + "\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def read_run(path: str | Path) -> tuple[dict[str, Any], Iterator[StepTrace]]:
    """The header of a recorded run and its steps. Raises WorkbenchError for a file of another kind or version."""
    with open(path, encoding="utf-8") as lines:
        try:
            header = json.loads(lines.readline())
            version = header["schema_version"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise WorkbenchError(
                f"{path} is not a recorded run: its first line is no header with a schema_version"
            ) from None
    if version != SCHEMA_VERSION:
        raise WorkbenchError(
            f"{path} has schema_version {version}; this version reads {SCHEMA_VERSION}: record it again"
        )
    return header, _steps(path)


def _steps(path: str | Path) -> Iterator[StepTrace]:
    with open(path, encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            yield StepTrace.from_json(line)
