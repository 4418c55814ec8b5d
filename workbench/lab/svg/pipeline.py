"""A simulated tile of attention by time: a lane for each unit, a bar for each job."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.errors import UsageError
from workbench.lab.svg.canvas import FONT, Canvas, text_width
from workbench.lab.svg.hatch import dotted, slanted
from workbench.simulate.tile_pipeline import ROWS, SPECIAL, TENSOR, Job, Timeline

_LEFT, _TOP, _LANE, _GAP, _WIDTH = 128.0, 30.0, 26.0, 22.0, 900.0
_TONES = ("prefill", "recompute")
"""Of warpgroups 0 and 1; the second one's bars are dotted too, exponentials are slanted."""


def render_pipeline(runs: Mapping[str, Timeline], title: str = "simulated") -> str:
    """Runs one below the other on one axis of time. Raises UsageError without runs and for over two warpgroups."""
    if not runs:
        raise UsageError("there is no run to draw")
    if any(job.warpgroup >= len(_TONES) for run in runs.values() for job in run.jobs):
        raise UsageError(f"a picture has at most {len(_TONES)} warpgroups")
    longest = max(run.seconds for run in runs.values())
    scale = (_WIDTH - _LEFT - 16) / longest
    block = 2 * _LANE + _GAP + 16
    canvas = Canvas(_WIDTH, _TOP + block * len(runs) + 26)
    canvas.text(8, 16, title, FONT + 1, bold=True)
    for row, (name, run) in enumerate(runs.items()):
        top = _TOP + block * row
        rows = ROWS * (1 + max(job.warpgroup for job in run.jobs))
        share = f"{rows} rows; tensor cores busy {run.busy(TENSOR):.0%} of {1e6 * run.seconds:.2f} µs"
        canvas.text(_LEFT, top + 12, f"{name}: {share}", FONT, bold=True)
        for lane, unit in enumerate((TENSOR, SPECIAL)):
            y = top + 18 + _LANE * lane
            canvas.text(_LEFT - 8, y + 16, unit, FONT - 1, "end")
            canvas.lines(f"M{_LEFT} {y + _LANE - 2:.1f}H{_LEFT + scale * run.seconds:.1f}", 0.5, opacity=0.4)
            for job in run.jobs:
                if job.unit == unit:
                    _bar(canvas, job, _LEFT + scale * job.begin, y, scale * (job.end - job.begin))
    _legend(canvas, _TOP + block * len(runs) + 4)
    told = "; ".join(f"{name}: tensor cores busy {run.busy(TENSOR):.0%}" for name, run in runs.items())
    return canvas.svg(title, f"{told}.")


def _bar(canvas: Canvas, job: Job, x: float, y: float, width: float) -> None:
    label = f"{job.name} {job.block}"
    canvas.open(f"warpgroup {job.warpgroup}: {label}", warpgroup=job.warpgroup, job=job.name)
    _fill(canvas, job.warpgroup, job.name, x, y, width, _LANE - 5)
    shown = next((text for text in (label, job.name, str(job.block)) if text_width(text, FONT - 2) < width - 3), "")
    canvas.text(x + width / 2, y + 14.5, shown, FONT - 2, "middle")
    canvas.close()


def _fill(canvas: Canvas, warpgroup: int, name: str, x: float, y: float, width: float, height: float) -> None:
    canvas.rect(x, y, width, height, _TONES[warpgroup], 0.7)
    if warpgroup:
        dotted(canvas, x, y, width, height)
    if name == "exp":
        slanted(canvas, x, y, width, height)


def _legend(canvas: Canvas, y: float) -> None:
    canvas.open(part="legend")
    x = _LEFT
    entries = ((0, "QK", "warpgroup 0"), (1, "QK", "warpgroup 1 (dots)"), (0, "exp", "exp: softmax (slanted lines)"))
    for warpgroup, name, words in entries:
        _fill(canvas, warpgroup, name, x, y, 18, 13)
        canvas.text(x + 24, y + 11, words, FONT - 1)
        x += 46 + text_width(words, FONT - 1)
    canvas.text(x, y + 11, "QK: scores, PV: weights × values; numbers: blocks of keys", FONT - 1)
    canvas.close()
