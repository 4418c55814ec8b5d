"""Executes notebooks and keeps the outputs that read well without running: ``make notebooks``.

    python -m workbench.lab.write [NN …] [--check]

Every notebook runs from its first cell in a fresh kernel of this Python, on the CPU, at tier ``cpu``, with no progress
of earlier runs. Tables, figures and text are kept. Left out are messages on stderr, widgets, whatever belongs to one
machine or moment (cells tagged ``timing`` or ``machine``), and all that a kernel says about itself. ``--check`` writes
nothing and names the cells whose outputs differ from the file's: run after a write, it finds those that change from
run to run and are not tagged. Exit 0: done; 1: a cell failed, or an output cannot be kept or differs; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import base64
import copy
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from workbench.errors import UsageError, WorkbenchError
from workbench.files import write_atomically
from workbench.lab import cells

SHOWN = ("text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/svg+xml")
"""Kinds of output that a reader of the file sees without a kernel."""
WIDGET = "application/vnd.jupyter.widget-view+json"
MAX_PNG_BYTES = 80_000
CELL_SECONDS = 900
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
"""Where an object lies in memory, as the repr of one that has none of its own shows it."""
FAILED, WRONG_USAGE = 1, 2


def executed(path: Path) -> NotebookNode:
    """The notebook of a file with the outputs of a run that are kept. Raises WorkbenchError for a cell that fails."""
    file = cells.read(path)
    notebook = nbformat.read(path, as_version=4)
    run = _run(copy.deepcopy(notebook), file)
    notebook.metadata.pop("widgets", None)
    code = [(old, new) for old, new in zip(notebook.cells, run.cells, strict=True) if old.cell_type == "code"]
    for number, (cell, fresh) in enumerate(code, 1):
        dropped = cells.UNSTABLE & set(cell.metadata.get("tags", []))
        ran = cell.source.strip() and fresh.metadata.get("ran") and not dropped
        cell.outputs = kept(fresh.outputs, number) if ran else []
        cell.execution_count = number if ran else None
    return notebook


def kept(outputs: Sequence[NotebookNode], number: int) -> list[NotebookNode]:
    """Those outputs of the code cell with this number that stay in the file, in order and in one form."""
    found: list[NotebookNode] = []
    for output in map(copy.deepcopy, outputs):
        kind = output.output_type
        if kind == "error" or output.get("name") == "stderr":
            continue
        if kind == "stream":
            # How a text was cut into messages is chance.
            if found and found[-1].output_type == "stream":
                found[-1].text += output.text
            else:
                found.append(output)
            continue
        # The text beside a widget only says that there is one.
        shown = {} if WIDGET in output.data else {kind: output.data[kind] for kind in SHOWN if kind in output.data}
        if not shown:
            continue
        output.data = NotebookNode(shown)
        if kind == "execute_result":
            output.execution_count = number
        found.append(output)
    return found


def faults(notebook: NotebookNode) -> list[str]:
    """What is wrong with outputs that are to be committed, each with its cell; empty when nothing is."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = json.dumps(output, ensure_ascii=False)
            if hit := cells.MACHINE_PATH.search(text):
                found.append(f"{cell.id}: shows the path {hit[0]}… of this machine; print a relative one")
            if hit := ADDRESS.search(text.replace(output.get("data", {}).get("image/png", "\0"), "")):
                found.append(f"{cell.id}: shows the address {hit[0]}; show an object that has a repr of its own")
            size = len(base64.b64decode(output.get("data", {}).get("image/png", "")))
            if size > MAX_PNG_BYTES:
                found.append(f"{cell.id}: a figure of {size:,} bytes; the most is {MAX_PNG_BYTES:,}: draw it smaller")
    return found


def text_of(notebook: NotebookNode) -> str:
    """A notebook as its file holds it: one space of indent, keys in order, a newline at the end."""
    nbformat.validate(notebook)
    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"


def differences(committed: NotebookNode, fresh: NotebookNode) -> list[str]:
    """The cells whose outputs differ, each with the first line that does."""
    found = []
    for old, new in zip(committed.cells, fresh.cells, strict=True):
        lines = [_lines(cell) for cell in (old, new)]
        if lines[0] != lines[1]:
            length = max(map(len, lines))
            padded = [list(part) + ["(nothing)"] * (length - len(part)) for part in lines]
            was, now = next(pair for pair in zip(*padded, strict=True) if pair[0] != pair[1])
            found.append(f"{old.id}: the file has {was[:80]!r}, this run {now[:80]!r}")
    return found


def _lines(cell: NotebookNode) -> list[str]:
    if cell.cell_type != "code":
        return []
    texts = [json.dumps(output, indent=1, sort_keys=True, ensure_ascii=False) for output in cell.outputs]
    lines = [line for text in texts for line in text.replace("\\n", "\n").split("\n")]
    return [f"execution count {cell.execution_count}", *lines]


def _run(notebook: NotebookNode, file: cells.NotebookFile) -> NotebookNode:
    """Runs every cell that runs on a CPU; marks those in their metadata with ``ran``."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    with tempfile.TemporaryDirectory() as scratch:
        client = NotebookClient(notebook, km=_kernel_manager(), timeout=CELL_SECONDS,
                                resources={"metadata": {"path": str(file.path.resolve().parent)}})  # fmt: skip
        client.owns_km = True
        # What a kernel says to nobody's cell is of use only when it dies.
        said = Path(scratch, "kernel.txt").open("w+b")
        with said, client.setup_kernel(env=_environment(Path(scratch)), stderr=said):
            for index, (cell, read) in enumerate(zip(notebook.cells, file.cells, strict=True)):
                skipped = "nbval-skip" in read.tags or cells.why_skipped(file.wishes, read.wishes, cuda=False)
                if read.kind != "code" or skipped:
                    continue
                try:
                    client.execute_cell(cell, index, store_history=False)
                except CellExecutionError as error:
                    raise WorkbenchError(f"{file.name}, cell {read.id}: {error.ename}: {error.evalue}") from error
                except CellTimeoutError as error:
                    raise WorkbenchError(f"{file.name}, cell {read.id}: not done in {CELL_SECONDS} s") from error
                except DeadKernelError as error:
                    last = Path(said.name).read_text("utf-8", "replace")[-2000:].strip()
                    raise WorkbenchError(f"{file.name}, cell {read.id}: the kernel died; it said: {last}") from error
                cell.metadata["ran"] = True
    return notebook


def _kernel_manager() -> Any:
    """Starts kernels of this very Python, whatever kernel named python3 a person has installed."""
    from ipykernel import kernelspec
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    class OwnPython(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> Any:
            spec = self.kernel_spec_class(resource_dir=str(kernelspec.RESOURCES), **kernelspec.get_kernel_dict())
            # Found by a relative PATH, Python calls itself by a relative name, and a kernel starts in another folder.
            spec.argv = [os.path.abspath(sys.executable), *spec.argv[1:]]
            return spec

    return AsyncKernelManager(kernel_spec_manager=OwnPython())


def _environment(scratch: Path) -> dict[str, str]:
    """What a reader's kernel has, but for the sake of equal outputs one size, no past, and no settings of a person."""
    mine = {name: value for name, value in os.environ.items() if name not in ("WORKBENCH_GRADE", "WORKBENCH_TURN_OFF")}
    return mine | {
        "WORKBENCH_TIER": "cpu",
        "WORKBENCH_DEVICE": "cpu",
        "WORKBENCH_STATIC": "1",
        "WORKBENCH_PROGRESS": str(scratch / "progress.json"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "MPLCONFIGDIR": str(scratch / "matplotlib"),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([str(cells.folder().parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def write(path: Path, check: bool = False) -> list[str]:
    """Executes one notebook and writes its file anew if nothing is wrong; gives what is wrong. ``check``: only look."""
    fresh = executed(path)
    found = faults(fresh)
    before, after = path.read_text(encoding="utf-8"), text_of(fresh)
    if check:
        found += differences(nbformat.reads(before, as_version=4), fresh)
        return found or ([] if before == after else ["the file is not in the form that this command writes"])
    if not found and before != after:
        mode = path.stat().st_mode
        write_atomically(path, after)
        path.chmod(mode)  # a notebook stays readable for those who could read it
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser("python -m workbench.lab.write", description="Executes notebooks, keeps outputs.")
    parser.add_argument("notebooks", nargs="*", help="numbers, names or files; default: all")
    parser.add_argument("--check", action="store_true", help="write nothing; name the cells whose outputs differ")
    args = parser.parse_args(argv)
    status = 0
    try:
        paths = [cells.find(name) for name in args.notebooks] or sorted(cells.folder().glob("*.ipynb"))
    except UsageError as error:
        print(f"lab.write: {error}", file=sys.stderr)
        return WRONG_USAGE
    for path in paths:
        start = time.perf_counter()
        try:
            found = write(path, args.check)
        except WorkbenchError as error:
            found = [str(error)]
        for what in found:
            print(f"lab.write: {path.stem}: {what}", file=sys.stderr)
        kind = "wrong" if found else "as committed" if args.check else "written"
        print(f"{path.stem}: {kind}, {time.perf_counter() - start:.1f} s", flush=True)
        status = FAILED if found else status
    return status


if __name__ == "__main__":
    sys.exit(main())
