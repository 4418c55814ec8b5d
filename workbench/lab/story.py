"""What became of each request, step by step: read from traces once, then drawn as tables and as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workbench.engine.trace import StepTrace

LETTERS = {"prefill": "p", "decode": "d", "recompute": "r", "preempted": "x", "waiting": "w", "held": "h", "ended": ""}
"""The kinds of `Event` and the letter that stands for each."""
TONE = {"preempted": "alert", "waiting": "quiet", "held": "quiet", "ended": "quiet"}
"""Key of `table.TONES` for a kind, where it is not the kind itself."""
_MOST_NAMED = 6
"""Requests that a sentence names; with more it counts."""


class Event(NamedTuple):
    """What happened to one request in one step."""

    kind: str
    """A key of `LETTERS`; ``held`` is one that has its whole answer and keeps its seat, ``ended`` one that was aborted
    without being computed."""
    num_tokens: int = 0
    start: int = 0
    """Tokens computed in this step, and before it."""
    new_token: bool = False
    ended: str = ""
    """Why it ended with this step: ``stop``, ``length``, ``abort``; empty while it goes on."""
    reason: str = ""
    """Why it waits; empty where the trace lists no reason."""

    @property
    def sign(self) -> str:
        """``p16*!``: letter, tokens unless it is a decode, ``*`` for a new token, ``!`` for an end."""
        text = LETTERS[self.kind]
        if self.num_tokens and self.kind != "decode":
            text += f"{self.num_tokens}{'*' if self.new_token else ''}"
        return text + ("!" if self.ended else "")

    @property
    def tone(self) -> str:
        return TONE.get(self.kind, self.kind)

    @property
    def words(self) -> str:
        """``prefill 16 tokens, new token``, for a title or a sentence."""
        tokens = f" {self.num_tokens} token{'s' if self.num_tokens > 1 else ''}" if self.num_tokens else ""
        reason = f" ({self.reason})" if self.reason else ""
        parts = [f"{'' if self.kind == 'ended' else self.kind}{tokens}{reason}"]
        parts += ["new token"] if self.new_token else []
        parts += [f"ended: {self.ended}"] if self.ended else []
        return ", ".join(part for part in parts if part)


def events(trace: StepTrace) -> dict[str, Event]:
    """What the trace says of each request: who was computed, then who was preempted, waits, is held, or was aborted."""
    got = {new["request_id"] for new in trace.new_tokens}
    ended = {end["request_id"]: end["reason"] for end in trace.finished}
    found: dict[str, Event] = {}
    for item in trace.scheduled:
        name = item["request_id"]
        found[name] = Event(
            item["kind"], item["num_tokens"], item["num_computed_tokens"], name in got, ended.get(name, "")
        )
    # One that was preempted is also left out of the step: the stronger event stands.
    found |= {name: Event("preempted", ended=ended.get(name, "")) for name in trace.preempted}
    for skip in trace.skipped:
        name = skip["request_id"]
        found.setdefault(name, Event("waiting", ended=ended.get(name, ""), reason=skip["reason"]))
    for name in trace.held:
        found.setdefault(name, Event("held", ended=ended.get(name, "")))
    for name, reason in ended.items():
        found.setdefault(name, Event("ended", ended=reason))
    return found


def lanes(traces: Sequence[StepTrace]) -> dict[str, list[Event | None]]:
    """For each request, in order of arrival, its event in every step; None before it came and after it ended.

    A trace lists only the first of a long queue; a request that is known, unfinished and not listed waits.
    """
    found: dict[str, list[Event | None]] = {}
    alive: dict[str, None] = {}
    for index, trace in enumerate(traces):
        alive |= {name: None for name, during in _added(trace) if not during}
        now = events(trace)
        alive |= dict.fromkeys(now)
        for name in alive:
            found.setdefault(name, [None] * len(traces))[index] = now.get(name, Event("waiting"))
        for end in trace.finished:
            alive.pop(end["request_id"], None)
        # What came while the step was computed can be served only by the next one.
        alive |= {name: None for name, during in _added(trace) if during}
    return found


def arrivals(traces: Sequence[StepTrace]) -> dict[str, tuple[int, float]]:
    """By request id: index of the first step that could serve it, and its arrival time in seconds."""
    times = {
        event["add"]["request_id"]: event["add"]["arrival_time"]
        for trace in traces
        for event in trace.inputs
        if "add" in event
    }
    found: dict[str, tuple[int, float]] = {}
    for index, trace in enumerate(traces):
        for name, during in _added(trace):
            found.setdefault(name, (index + during, times[name]))
    return found


def sentence(trace: StepTrace) -> str:
    """One step in words; it counts requests where it would have to name many."""
    now = events(trace)
    if not now:
        return f"step {trace.step}: nothing to do"
    if len(now) <= _MOST_NAMED:
        return f"step {trace.step}: " + "; ".join(f"{name} {event.words}" for name, event in now.items())
    parts = []
    for kind in LETTERS:
        same = [event for event in now.values() if event.kind == kind]
        tokens = sum(event.num_tokens for event in same)
        parts += [f"{len(same)} {kind}" + (f" ({tokens} tokens)" if tokens else "")] if same else []
    ended = sum(bool(event.ended) for event in now.values())
    return f"step {trace.step}: " + ", ".join([*parts, *([f"{ended} of them ended"] if ended else [])])


def _added(trace: StepTrace) -> list[tuple[str, bool]]:
    return [(event["add"]["request_id"], bool(event.get("during_step"))) for event in trace.inputs if "add" in event]
