"""StepTrace: everything that happened in one step, as data; and a run of them as JSONL.

Metrics, widgets, tests, replay and the simulator read traces; none of them reaches into the engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from workbench.checks import json_object, shown
from workbench.engine.trace_checks import check_trace
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
    """``{allocated, freed, shared, swapped_out, swapped_in, evicted, cached, free, total}``: the last three of the pool
    now, the others since the step before. ``cached``, with prefix caching only: held by nobody and kept."""
    cached_tokens: int
    """Tokens that requests admitted in this step did not have to compute, because their KV was cached."""
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
    be replayed. ``{"more_may_come": bool}`` says whether a batch may wait for company; ``{"refused": {…}, "reason":
    "queue_limit"}`` tells in full of a request that was turned away; ``{"reset_prefix_cache": true}`` empties the
    cache, ``{"kv_fields": {…}}`` moves to another namespace."""
    held: list[str] = field(default_factory=list)
    """Requests that had their whole answer and kept their seat, because their batch was not done: idle slots."""
    wake_time: float | None = None
    """In a step that computed nothing because a batch waits for company: when the wait ends, if it has an end."""
    moved_bytes: int = 0
    """Keys and values copied between the pool and the host's memory, as ``blocks`` counts them in ``swapped_out`` and
    ``swapped_in``; not part of ``bytes``."""
    queried: dict[str, int] = field(default_factory=dict)
    """``{queries, query_tokens, hit_tokens, query_blocks, hit_blocks}``: what requests admitted in this step asked the
    prefix cache for and found (`workbench.kv.caching_pool.PrefixStats`); empty without prefix caching."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StepTrace:
        """The inverse of `to_json`. Raises WorkbenchError for text that is no trace."""
        found = json_object(text)
        check_trace(found, {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(cls)})
        return cls(**found)


class TraceWriter:
    """Writes a run to a file: one header line, then one line a step. A listener of an engine and a context manager."""

    def __init__(
        self, path: str | Path, header: dict[str, Any], on_close: Callable[[TraceWriter], None] = lambda writer: None
    ) -> None:
        """``on_close``: told once, when the recording ends."""
        self._on_close = on_close
        self._file: TextIO = open(Path(path), "w", encoding="utf-8")
        self._file.write(json.dumps({"schema_version": SCHEMA_VERSION, **header}) + "\n")

    def __call__(self, trace: StepTrace) -> None:
        if not self._file.closed:
            self._file.write(trace.to_json() + "\n")

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
            self._on_close(self)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def read_run(path: str | Path) -> tuple[dict[str, Any], Iterator[StepTrace]]:
    """The header of a recorded run and its steps. Raises WorkbenchError for a file of another kind or version, and, at
    a step that is damaged, one that names the file and the line."""
    lines = _lines(path)
    first = next(lines, "")
    try:
        header = json_object(first)
    except WorkbenchError:
        header = {}
    if "schema_version" not in header:
        raise WorkbenchError(f"{path} is not a recorded run: its first line is no header with a schema_version")
    if header["schema_version"] != SCHEMA_VERSION:
        version = shown(header["schema_version"])
        raise WorkbenchError(
            f"{path} has schema_version {version}; this version reads {SCHEMA_VERSION}: record it again"
        )
    return header, _steps(path, lines)


def _steps(path: str | Path, lines: Iterator[str]) -> Iterator[StepTrace]:
    for number, line in enumerate(lines, 2):
        try:
            yield StepTrace.from_json(line)
        except WorkbenchError as error:
            raise damaged(path, number, error) from None


def damaged(path: str | Path, line: int, reason: object) -> WorkbenchError:
    """The error for a recording whose ``line`` (the header is line 1) cannot be used."""
    return WorkbenchError(f"{path}, line {line}, is damaged: {reason}; record the run again or cut the file there")


def _lines(path: str | Path) -> Iterator[str]:
    """Only a newline ends a line: JSON text may hold other characters that Python takes for line ends."""
    number = 0
    try:
        with open(Path(path), encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):  # noqa: B007 (told below)
                yield line
    except UnicodeDecodeError as error:
        raise damaged(path, number + 1, f"it is not UTF-8 ({error.reason})") from None
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be read: {error.strerror}") from None
