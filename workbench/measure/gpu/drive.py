"""Runs the sections, each a process with a limit in time; after each, and while it runs, hands over what is known.

This process imports no torch, so nothing that a section does to a GPU or to memory reaches it. One that dies is started
again without the item that it died of, as long as its time lasts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import workbench
from workbench.measure.gpu.report import read, why
from workbench.measure.gpu.scale import Scale
from workbench.measure.gpu.sections import SECTIONS, TOTAL_SECONDS, Section

ROOT = Path(workbench.__file__).resolve().parents[1]
CACHE = ROOT / "build" / "gpu-cache"
"""What Triton and torch compiled: a second run on the same machine finds it."""
POLL_SECONDS = 2.0
STARTS = 4
PATIENCE = 20
"""How many times the limits a rehearsal may take: it runs on a CPU, with kernels interpreted."""
TAIL = 2000
"""Characters of a section's output that are kept when something went wrong."""

Told = dict[str, Any]


def drive(
    scale: Scale,
    told: Callable[[list[Told]], None],
    say: Callable[[str], None] = print,
    only: Sequence[str] = (),
    sections: Sequence[Section] = SECTIONS,
    total: float = TOTAL_SECONDS,
) -> list[Told]:
    """What became of each section: ``{name, status, seconds, limit, rows, error, output}``.

    ``status``: ``ok``, ``failed`` (some or all of it; ``error`` says why), ``timeout`` or ``left out``. ``told`` is
    called with the list as it stands whenever it has grown, and may not raise. ``only``: names of sections; the others
    are left out. ``total``: seconds for all.
    """
    begin, done = time.monotonic(), list[Told]()
    total *= PATIENCE if scale.tiny else 1
    for one in sections:
        limit = (one.quick if scale.quick else one.seconds) * (PATIENCE if scale.tiny else 1)
        if only and one.name not in only:
            continue
        left = total - (time.monotonic() - begin)
        blind = any(row.get("no_gpu") for before in done for row in before["rows"])
        if limit == 0 or left < 1 or blind:
            reason = "there is no GPU" if blind else "no time was left" if limit else "not part of a quick run"
            done.append({"name": one.name, "status": "left out", "error": reason, "rows": []})
            told(done)
            continue
        say(f"{one.name}: at most {min(limit, left):.0f} s")
        done.append({"name": one.name, "status": "running", "rows": []})
        begun = time.monotonic()
        try:
            done[-1] |= _section(one, scale, min(limit, left), lambda rows: (done[-1].update(rows=rows), told(done)))
        except Exception as error:  # no room for its scratch files, say: the next may need none
            seconds = round(time.monotonic() - begun, 2)
            done[-1] |= {"status": "failed", "seconds": seconds, "error": why(error), "output": None}
        say(f"{one.name}: {done[-1]['status']}, {len(done[-1]['rows'])} rows, {done[-1]['seconds']:.1f} s"
            + (f" ({done[-1]['error']})" if done[-1]["error"] else ""))  # fmt: skip
        told(done)
    return done


def _section(one: Section, scale: Scale, limit: float, grown: Callable[[list[Told]], Any]) -> Told:
    begin, status = time.monotonic(), "failed"
    crashes: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        rows, output = Path(scratch, "rows.jsonl"), Path(scratch, "output.txt")
        while status == "failed" and len(crashes) < STARTS:
            before = len(read(rows)[1])
            left = begin + limit - time.monotonic()
            if left < 1:
                break
            status, end = _process(one, scale, rows, output, left, grown)
            begun = read(rows)[1]
            if status == "failed":
                last = (_text(output).strip().splitlines() or ["it said nothing"])[-1][:300]
                crashes.append(f"{end}{f' amid {begun[-1]}' if begun else ''}: {last}")
                if len(begun) == before:
                    break  # it died before it began anything new: it would again
        found, begun = read(rows)
        grown(found)
        text = _text(output)
    errors = crashes + [row["error"] for row in found if row.get("error")]
    error = None
    if status == "timeout":
        error = f"not done after {limit:.0f} s" + (f", amid {begun[-1]}" if begun else "")
    elif left_out := [row["left_out"] for row in found if "left_out" in row]:
        status, error = "left out", left_out[0]
    elif errors or status == "failed":
        errors, status = errors or ["no time was left"], "failed"
        error = errors[0] + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else "")
    kept = text[-TAIL:] if error else None
    seconds = round(time.monotonic() - begin, 2)
    return {"status": status, "seconds": seconds, "limit": round(limit, 1), "error": error, "output": kept}


def _text(output: Path) -> str:
    return output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""


def _process(
    one: Section, scale: Scale, rows: Path, output: Path, limit: float, grown: Callable[[list[Told]], Any]
) -> tuple[str, str]:
    """The status and how it ended, in words."""
    command = [sys.executable, "-m", "workbench.measure.gpu.child", one.name, one.function, str(rows)]
    until = time.monotonic() + limit
    with output.open("ab") as out:
        # A session of its own, so that what it has started ends with it.
        child = subprocess.Popen(command, cwd=ROOT, env=environment(scale), stdin=subprocess.PIPE, stdout=out,
                                 stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        assert child.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(scale.to_dict()).encode() + b"\n")
                child.stdin.flush()
            while True:
                try:
                    code = child.wait(timeout=max(0.0, min(POLL_SECONDS, until - time.monotonic())))
                    return "ok" if code == 0 else "failed", f"signal {-code}" if code < 0 else f"exit {code}"
                except subprocess.TimeoutExpired:
                    grown(read(rows)[0])
                    if time.monotonic() >= until:
                        return "timeout", "stopped"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()  # it stays open until here: its end tells a section that this process is gone


def environment(scale: Scale) -> dict[str, str]:
    """Of a section's process: where compiled kernels are kept, and whether Triton interprets."""
    made = dict(os.environ)
    made["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [made.get("PYTHONPATH")])])
    made.setdefault("TRITON_CACHE_DIR", str(CACHE / "triton"))
    made.setdefault("TORCHINDUCTOR_CACHE_DIR", str(CACHE / "inductor"))
    if scale.device == "cpu":
        made["TRITON_INTERPRET"] = "1"
        made["WORKBENCH_DEVICE"] = "cpu"
    else:
        made["TRITON_INTERPRET"] = "0"  # said, not left open: the tests would look for /dev/nvidia0
    return made
