"""A worker process and how it is driven: JSON lines, a limit of time, stopped while others are measured. No torch."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.measure.peers.environment import last_lines

LEAVE_SECONDS = 15
"""How long a worker may take to end once its input is closed."""


class PeerFailed(WorkbenchError):
    """A worker died, hung, or said that it could not."""


class Worker:
    """One process group, started at once. What it prints besides its answers goes to ``log``."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.stopped = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with log.open("wb") as errors:
            try:
                # A session of its own: its children can be stopped and ended with it, and Ctrl-C reaches us alone.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=dict(env),
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,
                )
            except OSError as error:
                raise PeerFailed(f"{command[0]} cannot be started: {error.strerror}") from None
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, message: Mapping[str, Any], timeout: float) -> Any:
        """Sends a message and waits for its answer. Raises PeerFailed with the last lines of the log for a worker that
        dies, says nothing for ``timeout`` seconds (it is ended then), or answers with an error or with something that
        is no answer."""
        assert self._process.stdin is not None
        # It may be dead or closed already; what it wrote last says why.
        with suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            self.close(patience=0)
            raise PeerFailed(f"no answer to {message['do']!r} in {timeout:g} s; its log: {self._log_tail()}") from None
        if line is None:
            status = self._process.wait()
            raise PeerFailed(f"it ended with status {status} at {message['do']!r}; its log: {self._log_tail()}")
        try:
            answer = json.loads(line)
            if "error" not in answer:
                return answer["ok"]
        except (ValueError, KeyError, TypeError):
            raise PeerFailed(f"{line[:100]!r} is no answer to {message['do']!r}") from None
        raise PeerFailed(f"{message['do']} failed: {answer['error']}")

    def stop(self) -> None:
        """Halts the whole group until `go`: an idle system must not take processors from the one that is measured."""
        self._signal(signal.SIGSTOP)
        self.stopped = True

    def go(self) -> None:
        self._signal(signal.SIGCONT)
        self.stopped = False

    def cpu_seconds(self) -> float | None:
        """Processor time of the whole group so far; None where the system does not tell."""
        ticks = 0
        try:
            for entry in Path("/proc").iterdir():
                if not entry.name.isdigit():
                    continue
                with suppress(OSError):
                    # After the name, which may hold anything: state, parent, group, …; user and system time are 12, 13.
                    fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                    if int(fields[2]) == self._process.pid:
                        ticks += int(fields[11]) + int(fields[12])
        except OSError:
            return None
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self, patience: float = LEAVE_SECONDS) -> None:
        """Ends the worker and all that it started: first by closing its input, then by force."""
        with suppress(OSError):
            self.go()
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=patience)
        finally:  # also where Ctrl-C ends the waiting
            # Its children may be there when it is gone.
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _log_tail(self) -> str:
        return last_lines(self.log.read_text(encoding="utf-8", errors="replace"))


def idle_shares(workers: Mapping[str, Worker], seconds: float = 1.0) -> dict[str, float | None]:
    """The share of one processor that each worker takes while nobody asks anything of it."""
    before = {name: worker.cpu_seconds() for name, worker in workers.items()}
    time.sleep(seconds)
    shares: dict[str, float | None] = {}
    for name, worker in workers.items():
        after, start = worker.cpu_seconds(), before[name]
        shares[name] = None if after is None or start is None else round((after - start) / seconds, 3)
    return shares
