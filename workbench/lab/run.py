"""Runs the code cells of a notebook without Jupyter, IPython or ipywidgets:

    python -m workbench.lab.run NN|FILE [--device D] [--tier T] [--turn-off] [--json FILE]

All cells share one namespace; the last expression of a cell is printed by its repr, figures are drawn to nowhere, and
widgets appear in their static form (``WORKBENCH_STATIC=1``). The run stops at the first cell that fails. Exercises are
graded with their solutions unless ``WORKBENCH_GRADE`` says otherwise. ``--turn-off`` turns off what the notebook is
about: its metadata names the engine options, the lesson lays them over its own (``WORKBENCH_TURN_OFF``).
Exit 0: every cell ran; 1: a cell failed; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import io
import json
import linecache
import os
import sys
import tempfile
import time
import tokenize
import traceback
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.config import EngineConfig
from workbench.errors import UsageError, WorkbenchError
from workbench.lab import cells
from workbench.lab.tier import TIERS

DEVICES = next(spec.metadata["choices"] for spec in dataclasses.fields(EngineConfig) if spec.name == "device")
FAILED, WRONG_USAGE = 1, 2


@dataclass(frozen=True, slots=True)
class CellRun:
    id: str
    seconds: float
    ok: bool
    skipped: str | None = None
    """Why it was not run."""
    error: Mapping[str, Any] | None = None
    """type, message, line (number in the cell) and source (that line) of what it raised."""


@dataclass
class NotebookRun:
    notebook: str
    device: str
    tier: str | None
    """None: nobody said, and the notebook has no lesson that chose."""
    turned_off: Mapping[str, Any] = field(default_factory=dict)
    cells: list[CellRun] = field(default_factory=list)
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the lesson measured, ``{name: {value, unit, spread}}``."""

    @property
    def ok(self) -> bool:
        return all(cell.ok for cell in self.cells)

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ok": self.ok}


def run(notebook: cells.NotebookFile, device: str = "auto", tier: str | None = None, turn_off: bool = False,
        cuda: bool | None = None) -> NotebookRun:  # fmt: skip
    """Runs a notebook and prints what it prints, each cell's id before and its seconds after it.

    ``tier`` None leaves the choice to the lesson. ``cuda``: whether cells for a CUDA device are run; default: whether
    ``device`` is one. Raises UsageError for a notebook that needs IPython or has nothing to turn off.
    """
    for cell in notebook.code:
        if line := cells.magic(cell.source):
            raise UsageError(f"{notebook.name}, cell {cell.id}: {line!r} needs IPython; use plain Python instead")
    if turn_off and not notebook.turn_off:
        raise UsageError(f"{notebook.name} names nothing to turn off: its metadata has no workbench.turn_off")
    cuda = cells.uses_cuda(device) if cuda is None else cuda
    tier = tier or os.environ.get("WORKBENCH_TIER")
    done = NotebookRun(notebook.name, device, tier, notebook.turn_off if turn_off else {})
    with _surroundings(notebook, device, tier, done.turned_off) as namespace:
        for number, cell in enumerate(notebook.code, 1):
            print(f"── {number}/{len(notebook.code)} {cell.id}", flush=True)
            done.cells.append(_run_cell(notebook, cell, namespace, cuda))
            if not done.ok:
                break
        if lesson := namespace.get("lesson"):
            done.tier, done.values = lesson.tier, lesson.values()
    return done


@contextlib.contextmanager
def _surroundings(
    notebook: cells.NotebookFile, device: str, tier: str | None, off: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The namespace of ``__main__``, in the notebook's folder and its environment; all put back afterwards."""
    module = types.ModuleType("__main__")
    module.__dict__["display"] = _display
    here, main, environment = Path.cwd(), sys.modules["__main__"], dict(os.environ)
    children = [str(cells.folder().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(WORKBENCH_STATIC="1", MPLBACKEND="Agg", WORKBENCH_DEVICE=device,
                      PYTHONPATH=os.pathsep.join(children))  # fmt: skip
    os.environ.setdefault("WORKBENCH_GRADE", "reference")
    os.environ.pop("WORKBENCH_TURN_OFF", None)
    if tier:
        os.environ["WORKBENCH_TIER"] = tier
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        if off:
            # What is measured with the feature off is no progress of the reader's.
            os.environ.update(WORKBENCH_TURN_OFF=json.dumps(off), WORKBENCH_PROGRESS=f"{scratch}/progress.json")
        if "matplotlib" in sys.modules:  # loaded before the variable was set
            sys.modules["matplotlib"].use("Agg")
        try:
            os.chdir(notebook.path.resolve().parent)
            # Pickles, dataclasses and multiprocessing look for what a cell defines in sys.modules["__main__"].
            sys.modules["__main__"] = module
            yield module.__dict__
        finally:
            sys.modules["__main__"] = main
            os.chdir(here)
            os.environ.clear()
            os.environ.update(environment)


def _run_cell(notebook: cells.NotebookFile, cell: cells.NotebookCell, namespace: dict[str, Any], cuda: bool) -> CellRun:
    reason = cells.why_skipped(notebook.wishes, cell.wishes, cuda)
    if reason is None and "nbval-skip" in cell.tags:
        reason = cell.wishes.get("reason", "it is tagged nbval-skip")
    if reason:
        print(f"   skipped: {reason}", flush=True)
        return CellRun(cell.id, 0.0, True, skipped=reason)
    label = f"{notebook.name}[{cell.id}]"
    # No time of change, so that inspect and tracebacks find the source under this name for good.
    linecache.cache[label] = (len(cell.source), None, cell.source.splitlines(keepends=True), label)
    start, error = time.perf_counter(), None
    try:
        _execute(cell.source, label, namespace)
    except (Exception, SystemExit) as raised:
        error = raised
    finally:
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")
    seconds = time.perf_counter() - start
    expected = "raises-exception" in cell.tags
    sys.stdout.flush()
    if error is None and expected:
        return _failed(cell, seconds, AssertionError("this cell is tagged raises-exception and raised nothing"), label)
    if error is not None and not expected:
        return _failed(cell, seconds, error, label)
    print(f"   {cell.id}: {seconds:.2f} s" + (f", raised as it should: {error!r}" if error else ""), flush=True)
    return CellRun(cell.id, round(seconds, 4), True)


def _execute(source: str, label: str, namespace: dict[str, Any]) -> None:
    """Runs a cell and prints the value of its last expression, unless that ends in a semicolon."""
    tree = ast.parse(source, label)
    last = tree.body[-1] if tree.body else None
    shown = isinstance(last, ast.Expr) and not _ends_in_semicolon(source)
    body = ast.Module(tree.body[:-1] if shown else tree.body, type_ignores=[])
    # dont_inherit: this file's __future__ imports are not the cell's.
    exec(compile(body, label, "exec", dont_inherit=True), namespace)
    if shown:
        assert isinstance(last, ast.Expr)
        value = eval(compile(ast.Expression(last.value), label, "eval", dont_inherit=True), namespace)
        if value is not None:
            namespace["_"] = value
            _display(value)


def _ends_in_semicolon(source: str) -> bool:
    quiet = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in quiet]
    return bool(tokens) and tokens[-1].string == ";"


def _display(*objects: object, **_: object) -> None:
    """IPython's display where there is none; notebooks may use the name without importing it."""
    for thing in objects:
        if hasattr(type(thing), "_ipython_display_"):
            thing._ipython_display_()  # type: ignore[attr-defined]
        else:
            print(repr(thing))


def _failed(cell: cells.NotebookCell, seconds: float, error: BaseException, label: str) -> CellRun:
    """Tells on stderr where a cell failed, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, ast.__file__):
        trace = trace.tb_next
    line = next((f.lineno for f in reversed(traceback.extract_tb(trace)) if f.filename == label), None)
    if isinstance(error, SyntaxError) and error.filename == label:
        line = error.lineno
    source = linecache.getline(label, line).strip() if line else ""
    print("".join(traceback.format_exception(type(error), error, trace)), end="", file=sys.stderr)
    where = f", line {line}: {source}" if line else ""
    print(f"{cell.id} failed after {seconds:.2f} s{where}", file=sys.stderr, flush=True)
    told = {"type": type(error).__name__, "message": str(error), "line": line, "source": source}
    return CellRun(cell.id, round(seconds, 4), False, error=told)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    args = _parser().parse_args(argv)
    try:
        if args.device not in DEVICES:  # argparse does not check a default
            raise UsageError(f"WORKBENCH_DEVICE={args.device!r} is not known; choose from {', '.join(DEVICES)}")
        notebook = cells.read(cells.find(args.notebook))
        cuda = cells.uses_cuda(args.device)
        if args.device == "cuda" and not cells.uses_cuda("auto"):
            raise UsageError("--device cuda: torch sees no GPU here; use --device cpu")
        report = Path(args.json).resolve() if args.json else None
        if report and not report.parent.is_dir():
            raise UsageError(f"--json {args.json}: no folder {report.parent}; make it first")
        done = run(notebook, args.device, args.tier, args.turn_off, cuda)
    except (UsageError, WorkbenchError) as error:
        print(f"lab.run: {error}", file=sys.stderr)
        return WRONG_USAGE if isinstance(error, UsageError) else FAILED
    if report:
        report.write_text(json.dumps(done.to_dict() | {"provenance": _provenance(cuda)}, indent=1) + "\n", "utf-8")
    skipped = sum(cell.skipped is not None for cell in done.cells)
    failed = "" if done.ok else f"; {done.cells[-1].id} failed, the rest was not run"
    seconds = sum(cell.seconds for cell in done.cells)
    print(f"{notebook.name}: {len(done.cells) - skipped} cells run, {skipped} skipped, {seconds:.1f} s{failed}")
    return 0 if done.ok else FAILED


def _provenance(cuda: bool) -> dict[str, Any]:
    import torch

    from workbench.measure.provenance import provenance

    return provenance(torch.device("cuda" if cuda else "cpu"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m workbench.lab.run", description="Runs a notebook without Jupyter.")
    parser.add_argument("notebook", help="its number, name or file")
    default = os.environ.get("WORKBENCH_DEVICE") or "auto"
    parser.add_argument("--device", default=default, choices=DEVICES, help="where the model runs (%(default)s)")
    parser.add_argument("--tier", choices=TIERS, help="size of the workload; default: WORKBENCH_TIER, or the lesson's")
    parser.add_argument("--turn-off", action="store_true", help="turn off what the notebook is about")
    parser.add_argument("--json", metavar="FILE", help="write what ran, what failed and what was measured")
    return parser


if __name__ == "__main__":
    sys.exit(main())
