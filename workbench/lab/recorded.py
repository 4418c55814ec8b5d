"""Recorded runs: what a notebook measured on another machine, shown beside the reader's own numbers with its device.

One JSON file a run in ``notebooks/recorded/``::

    {schema_version, notebook, device, driver, provenance, workload, values: {name: {value, unit, spread}}}

``device`` is a name such as ``NVIDIA H200``, ``driver`` null on a CPU, ``spread`` [low, high] in the unit, or null.
Only `Lesson.record` writes such files, from what that lesson measured, and `quantized_models` from what it found;
nothing is typed in or scaled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import workbench
from workbench.errors import WorkbenchError
from workbench.files import write_atomically

SCHEMA_VERSION = 1
FOLDER = Path(workbench.__file__).resolve().parents[1] / "notebooks" / "recorded"
FIELDS: dict[str, Any] = {
    "notebook": str,
    "device": str,
    "driver": (str, type(None)),
    "provenance": dict,
    "workload": str,
}
NUMBER = (int, float)


class RecordedValue(NamedTuple):
    value: float
    unit: str
    spread: tuple[float, float] | None
    """Lower and upper quartile."""
    device: str
    workload: str


class RecordedRun(NamedTuple):
    notebook: str
    device: str
    driver: str | None
    provenance: dict[str, Any]
    workload: str
    values: dict[str, RecordedValue]


def recorded_values(notebook: str, name: str) -> list[RecordedValue]:
    """What runs of a notebook (its number) gave for ``name``, the newest of each device."""
    newest: dict[str, tuple[str, RecordedValue]] = {}
    for run in recorded_runs(notebook):
        date = str(run.provenance.get("date", ""))
        if name in run.values and date >= newest.get(run.device, ("",))[0]:
            newest[run.device] = (date, run.values[name])
    return [value for _, value in newest.values()]


def recorded_runs(notebook: str) -> list[RecordedRun]:
    """The runs of a notebook in `FOLDER`. Raises WorkbenchError for a file that is not as described above."""
    runs = [read_run(path) for path in sorted(FOLDER.glob("*.json"))]
    return [run for run in runs if run.notebook == notebook]


def read_run(path: Path) -> RecordedRun:
    """One file. Raises WorkbenchError that names the file and the field that is wrong."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkbenchError(f"{path.name} is no recorded run: {error}") from error
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        raise WorkbenchError(f"{path.name} is no recorded run of schema version {SCHEMA_VERSION}")
    for field, kind in FIELDS.items():
        if not isinstance(data.get(field, 0), kind):
            raise WorkbenchError(f"{path.name}: {field}={data.get(field)!r} is missing or of the wrong type")
    if not isinstance(data.get("values"), dict) or not data["values"]:
        raise WorkbenchError(f"{path.name} holds no values")
    values = {name: _value(path, name, entry, data) for name, entry in data["values"].items()}
    return RecordedRun(**{field: data[field] for field in FIELDS}, values=values)


def write_run(
    path: Path,
    *,
    notebook: str,
    device: str,
    driver: str | None,
    provenance: dict[str, Any],
    workload: str,
    values: dict[str, dict[str, Any]],
) -> None:
    """Writes one run as `read_run` reads it; ``values``: {name: {value, unit, spread}}."""
    data = {"schema_version": SCHEMA_VERSION, "notebook": notebook, "device": device, "driver": driver}
    data |= {"provenance": provenance, "workload": workload, "values": values}
    write_atomically(path, json.dumps(data, ensure_ascii=False, indent=1) + "\n")


def _value(path: Path, name: str, entry: Any, run: dict[str, Any]) -> RecordedValue:
    spread = entry.get("spread") if isinstance(entry, dict) else None
    whole = (
        isinstance(entry, dict)
        and isinstance(entry.get("value"), NUMBER)
        and isinstance(entry.get("unit"), str)
        and (spread is None or (isinstance(spread, list) and [type(s) in NUMBER for s in spread] == [True, True]))
    )
    if not whole:
        raise WorkbenchError(f"{path.name}: {name}={entry!r} is not {{value, unit, spread}}")
    return RecordedValue(
        entry["value"], entry["unit"], None if spread is None else tuple(spread), run["device"], run["workload"]
    )
