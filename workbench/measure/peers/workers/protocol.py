"""What a worker and the process that drives it say to each other: one JSON object a line. Standard library only.

The driver's lines: ``{"do": "load", …options}`` first, then any number of ``{"do": "run", "prompts": [[id]],
"output_lens": [n], "head": h}`` (greedy, exactly so many tokens; the first h tokens of all prompts are the same) and
``{"do": "logits", "ids": [id], "file": path}``. The worker answers each with ``{"ok": …}`` or ``{"error": text}``, and
leaves at the end of its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol


class System(Protocol):
    """What a worker script has to offer."""

    def info(self) -> dict[str, Any]:
        """Precision, version, context, bytes of the weights that a token reads: whatever is to stand in the result."""
        ...

    def run(self, prompts: list[list[int]], output_lens: list[int], head: int, clock: Clock) -> list[list[int]]:
        """Serves the requests, all there at once, with nothing cached from before. Calls ``clock.start()`` when it is
        ready to begin, ``clock.first()`` when the first token of all is there, ``clock.stop()`` with the last."""
        ...

    def logits(self, ids: list[int]) -> Any:
        """Next-token logits after each id as an array ``[len(ids), vocab_size]`` float32, or None: it gives none."""
        ...


class Clock:
    """Seconds of one run, since `start`: what lies before it (an empty cache, say) is not the workload's."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._start = self._first = self._stop = 0.0

    def start(self) -> None:
        self._start = self._now()

    def first(self, at: float | None = None) -> None:
        """The first token is there, now or ``at`` that time; told again, it changes nothing."""
        if not self._first:
            self._first = self._now() if at is None else at

    def stop(self) -> None:
        self._stop = self._now()

    def told(self) -> dict[str, float]:
        """``seconds`` in all and ``first_seconds`` until the first token; 0 for one that was never called."""
        return {
            "seconds": max(0.0, self._stop - self._start),
            "first_seconds": max(0.0, self._first - self._start),
        }


def serve(load: Callable[..., System]) -> None:
    """Answers the driver until its input ends. ``load(**options)`` makes the system."""
    # Libraries print to standard output as they like: it is theirs, and goes where their errors go.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so it stands in the log as it happens
    _end_with_the_driver()
    system: System | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        do = asked.pop("do")
        try:
            if do == "load":
                system = load(**asked)
                answer: Any = system.info() | {"python": sys.version.split()[0]}
            else:
                assert system is not None, "nothing is loaded yet"
                answer = _run(system, **asked) if do == "run" else _logits(system, **asked)
            told = {"ok": answer}
        except Exception as error:
            traceback.print_exc()
            told = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(told) + "\n")
        out.flush()


def _end_with_the_driver() -> None:
    """A driver that is killed closes its end of the input, but a worker that was stopped then would never see it."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


def _run(system: System, prompts: list[list[int]], output_lens: list[int], head: int) -> dict[str, Any]:
    clock = Clock()
    answers = system.run(prompts, output_lens, head, clock)
    return clock.told() | {"answers": [[int(token) for token in answer] for answer in answers]}


def _logits(system: System, ids: list[int], file: str) -> dict[str, Any] | None:
    logits = system.logits(ids)
    if logits is None:
        return None
    import numpy as np

    array = np.asarray(logits, dtype=np.float32)
    np.save(file, array)
    return {"rows": int(array.shape[0])}
