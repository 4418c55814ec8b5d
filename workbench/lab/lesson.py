"""Lesson: what a notebook holds in its hand from the first cell to the last.

``lesson = start("01")`` prints what the machine is and what its numbers are worth. Then the reader predicts, the lesson
measures, and both stand side by side with what the machine allows and what other machines gave.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.checks import shown
from workbench.config import EngineConfig, from_options
from workbench.errors import UsageError
from workbench.lab import course
from workbench.lab.banner import Surroundings, banner, look_around
from workbench.lab.claims import claims_table
from workbench.lab.display import show_now
from workbench.lab.interpreted import interpret
from workbench.lab.measured import HEAD, Measured, finite, limit, number, reading
from workbench.lab.progress import Progress, open_progress
from workbench.lab.recorded import recorded_values, write_run
from workbench.lab.table import Cell, Table
from workbench.lab.tier import TIERS, choose_tier

if TYPE_CHECKING:
    from workbench.engine.engine import Engine
    from workbench.lab.exercise import Exercise
    from workbench.llm import LLM

SEED = 0
METRICS = ("TTFT ms", "ITL ms", "tok/s", "KV MB", "quality")
"""The columns of the scoreboard."""
PREFIX_CACHING_FROM = 14
"""The notebook that explains prefix caching."""
GPU_POOL_SHARE = 4
"""On a GPU a lesson's LLM takes this part of the free memory for its pool, so that a second one finds room too."""
POOL_SIZES = ("num_kv_blocks", "kv_cache_memory_bytes", "gpu_memory_utilization")

_started: list[Lesson] = []


def start(number: str) -> Lesson:
    """Begins the notebook of this number, ``"01"``: prints the banner and seeds what is random. Where it runs Triton
    kernels and there is no GPU, Triton will interpret them.

    Downloads nothing and loads no model. Raises UsageError for a notebook that is not in the course, and for a value of
    WORKBENCH_TIER, WORKBENCH_DEVICE or WORKBENCH_TURN_OFF that cannot be.
    """
    notebooks = {notebook.number: notebook for notebook in course.notebooks()}
    if not isinstance(number, str) or number not in notebooks:
        raise UsageError(f"there is no notebook {shown(number)}; the course has {', '.join(notebooks)}")
    turned_off = _turned_off()
    import torch

    from workbench.llm import resolve_device

    device = resolve_device(EngineConfig().device)
    random.seed(SEED)
    torch.manual_seed(SEED)
    around = look_around(device.type, notebooks[number].triton)
    tier = choose_tier(device.type, around.free_bytes)
    notes = [f"turned off for a test: {json.dumps(turned_off)}"] if turned_off else []
    notes += filter(None, [interpret(around.mode)])
    print(banner(notebooks[number].name, around, tier, SEED, notes))
    lesson = Lesson(notebooks[number], around, tier, turned_off, open_progress(tier, keep=not turned_off))
    _started[:] = [lesson]
    return lesson


def current_lesson() -> Lesson | None:
    """The lesson that was started last in this process."""
    return _started[0] if _started else None


class Lesson:
    """One notebook at work. Made by `start`."""

    def __init__(
        self,
        notebook: course.Notebook,
        around: Surroundings,
        tier: str,
        turned_off: dict[str, Any],
        progress: Progress,
    ) -> None:
        self.notebook = notebook
        self.number = notebook.number
        self.device = around.device
        self.mode = around.mode
        self.tier = tier
        self.seed = SEED
        self.progress = progress
        self._around = around
        self._turned_off = turned_off
        self._measured: dict[str, Measured] = {}
        self._llm: LLM | None = None

    def __repr__(self) -> str:
        return f"Lesson({self.number}, {self.device}, {self.mode}, tier {self.tier})"

    def pick(self, *, tiny: Any, cpu: Any, gpu: Any) -> Any:
        """The value for this tier."""
        return dict(zip(TIERS, (tiny, cpu, gpu), strict=True))[self.tier]

    # -- the engine

    def llm(self, **engine_options: Any) -> LLM:
        """An LLM on the course's model (WORKBENCH_MODEL, else the default one) with these engine options.

        Prefix caching is off up to the notebook that explains it: served again, a prompt would look quick.

        Weights are loaded once: a second call with other options of the engine shares them, with a cache of its own.
        """
        from workbench.llm import LLM

        caching = {"enable_prefix_caching": int(self.number) >= PREFIX_CACHING_FROM}
        options = {"device": self.device} | caching | engine_options | self._turned_off
        if self.device == "cuda" and not any(name in options for name in POOL_SIZES):
            import torch

            options["kv_cache_memory_bytes"] = torch.cuda.mem_get_info()[0] // GPU_POOL_SHARE
        config = from_options(options)
        loaded = self._llm
        if loaded is not None and any(getattr(config, name) != value for name, value in loaded.loaded_by.items()):
            loaded = self._llm = None
        self._llm = LLM(config, weights_of=loaded)
        return self._llm

    def engine(self, llm: LLM, **engine_options: Any) -> Engine:
        """Another engine over an LLM's model and cache, which serves one engine at a time; see `LLM.new_engine`."""
        from workbench.llm import CACHE_OPTIONS, LOADED_BY

        # What belongs to the model or its cache was turned off when the LLM was opened.
        turned_off = {k: v for k, v in self._turned_off.items() if k not in (*LOADED_BY, *CACHE_OPTIONS)}
        return llm.new_engine(**engine_options | turned_off)

    # -- predict and measure

    def predict(
        self, name: str, value: float | str, unit: str = "", choices: Sequence[float | str] | None = None
    ) -> Any:
        """Keeps the reader's guess for ``name`` and returns it: a finite number, or one of ``choices``.

        Raises UsageError for anything else, and for a unit that is not the one ``name`` was measured in.
        """
        if not isinstance(name, str):
            raise UsageError(f"a prediction needs a name in words, not {shown(name)}")
        if choices is not None:
            if not any(type(value) is type(choice) and value == choice for choice in choices):
                raise UsageError(f"{name}: {value!r} is not among the choices: {', '.join(map(repr, choices))}")
        elif isinstance(value, str) or (guessed := finite(value)) is None:
            raise UsageError(f"{name}: {shown(value)} is no guess: give a number{f' in {unit}' if unit else ''}")
        else:
            value = guessed
        if name in self._measured:
            _same_unit(name, "predicted", unit, "measured", self._measured[name].unit)
        guess = {"value": value, "unit": unit} | ({} if choices is None else {"choices": list(choices)})
        self.progress.put(self.number, "predictions", name, guess)
        return value

    def measure(
        self,
        name: str,
        value: Any,
        unit: str = "",
        roofline: Any = None,
        higher_is_better: bool | None = None,
        by_bytes: bool = False,
    ) -> Measured:
        """Shows ``value`` beside the guess, the roofline and recorded runs, and keeps it with its provenance.

        ``value``: a number, a ``Timing`` (shown in ``unit``, default ms), or one of the choices of the prediction.
        ``roofline``: a number in the same unit, or a ``Prediction`` of the roofline. Which direction is better is known
        for times, bytes and rates per second. ``by_bytes``: it is a ratio of bytes moved and no limit.
        Raises UsageError for a value, unit or roofline that does not fit.
        """
        guess = self.progress.entries(self.number, "predictions").get(name)
        result, low, high, repeats, unit = reading(name, value, unit)
        if isinstance(result, str) and result not in (guess or {}).get("choices", []):
            choices = ", ".join(map(repr, (guess or {}).get("choices", []))) or "none were predicted"
            raise UsageError(f"{name}: {result!r} is not among the choices: {choices}")
        if guess is not None:
            _same_unit(name, "predicted", guess["unit"], "measured", unit)
        if name in self._measured:
            _same_unit(name, "measured before", self._measured[name].unit, "now", unit)
        past = tuple(recorded_values(self.number, name))
        for run in past:
            _same_unit(name, f"recorded on {run.device}", run.unit, "measured", unit)
        source = self._provenance()
        measured = Measured(
            name,
            result,
            unit,
            low,
            high,
            repeats,
            None if guess is None else guess["value"],
            limit(name, roofline, unit),
            by_bytes,
            higher_is_better,
            past,
            _line(source),
        )
        self._measured[name] = measured
        kept = {"value": result, "unit": unit, "spread": _spread(measured), "tier": self.tier, "provenance": source}
        self.progress.put(self.number, "measurements", name, kept)
        show_now(measured.table())
        return measured

    def compare(self) -> Table:
        """All that this lesson has measured so far, with the gaps in words."""
        rows = [[*measured.row, "; ".join(measured.gaps)] for measured in self._measured.values()]
        return Table([*HEAD, "in words"], rows)

    def values(self) -> dict[str, dict[str, Any]]:
        """The numbers measured so far: {name: {value, unit, spread}}, ``spread`` [low, high] or None."""
        return {
            name: {"value": measured.value, "unit": measured.unit, "spread": _spread(measured)}
            for name, measured in self._measured.items()
            if not isinstance(measured.value, str)
        }

    def record(self, path: str | Path, workload: str = "") -> Path:
        """Writes what this lesson measured as a recorded run (`workbench.lab.recorded`), to be shown on other machines.

        Refused with UsageError when nothing was measured, or when the run is a test (tier ``tiny``, something turned
        off), whose numbers are worth nothing to others.
        """
        if not self.values():
            raise UsageError("nothing was measured yet: run the notebook's measuring cells first")
        if self.tier == "tiny" or self._turned_off:
            raise UsageError(
                f"a test run (tier {self.tier}) is no record: run the notebook with WORKBENCH_TIER=cpu or gpu"
            )
        from workbench.measure import provenance

        source = self._provenance()
        model = EngineConfig().model
        workload = workload or f"notebook {self.number}, tier {self.tier}, {Path(model).name}"
        device = source["device"] if self.device == "cuda" else source["cpu"]
        driver = provenance.driver() if self.device == "cuda" else None
        write_run(
            Path(path),
            notebook=self.number,
            device=device,
            driver=driver,
            provenance=source,
            workload=workload,
            values=self.values(),
        )
        return Path(path)

    # -- over all notebooks

    def scoreboard(self, **metrics: Any) -> Table:
        """Keeps this notebook's row (``**{"TTFT ms": 12.5, "tok/s": 80}``) and shows those of all notebooks done here.

        Metrics are those of `METRICS`; one that is left out shows as –. A ``Timing`` may stand for milliseconds.
        """
        if unknown := [name for name in metrics if name not in METRICS]:
            raise UsageError(f"{', '.join(unknown)} is not on the scoreboard: it has {', '.join(METRICS)}")
        values: dict[str, float | str] = {}
        for name, value in metrics.items():
            result = reading(name, value, "ms" if name.endswith(" ms") else "")[0]
            if isinstance(result, str) and name != "quality":
                raise UsageError(f"{name}: {result!r} is no number")
            values[name] = result
        if values:
            row = {"values": values, "device": self._around.described, "tier": self.tier}
            self.progress.put(self.number, "scoreboard", "row", row)
        rows: list[list[Cell | str | int]] = []
        names = {notebook.number: notebook.name for notebook in course.notebooks()}
        for notebook, entries in self.progress.notebooks("scoreboard").items():
            row = entries["row"]
            cells = [row["values"].get(metric) for metric in METRICS]
            shown = ["–" if v is None else v if isinstance(v, str) else number(v) for v in cells]
            rows.append([names.get(notebook, notebook), *shown, f"{row['device']}, tier {row['tier']}"])
        return Table(["notebook", *METRICS, "on"], rows)

    def claims(self, verdicts: Mapping[str, tuple[str, str]]) -> Table:
        """The notebook's claims with ``{id: (verdict, id of the cell that shows it)}``; see `claims_table`."""
        return claims_table(self.number, verdicts)

    def exercise(self, exercise_id: str) -> Exercise:
        """An exercise of this notebook, whose state is kept in the reader's progress."""
        from workbench.lab.exercises import exercise

        return exercise(self.number, exercise_id, self.progress)

    @contextmanager
    def must_trip(self, exception_type: type[BaseException], words: str) -> Iterator[None]:
        """The body must raise ``exception_type`` with ``words`` in its message; it is caught and printed.

        Raises AssertionError when nothing is raised or the message is another one; other exceptions pass through.
        """
        if not (isinstance(exception_type, type) and issubclass(exception_type, BaseException)):
            raise UsageError(f"must_trip needs a class of errors, not {shown(exception_type)}: AssertionError, say")
        if not isinstance(words, str) or not words:
            raise UsageError("must_trip needs words of the message: any error would do otherwise")
        try:
            yield
        except exception_type as error:
            if words not in str(error):
                raise AssertionError(f"it failed for another reason: {str(error)!r} does not say {words!r}") from error
            print(f"caught: {type(error).__name__}: {error}")
        else:
            raise AssertionError(f"nothing failed: {exception_type.__name__} ({words!r}) was expected")

    def _provenance(self) -> dict[str, Any]:
        import torch

        from workbench.measure.provenance import provenance

        return provenance(torch.device(self.device))


def _turned_off() -> dict[str, Any]:
    """WORKBENCH_TURN_OFF: engine options as JSON, by which a test turns a notebook's feature off."""
    text = os.environ.get("WORKBENCH_TURN_OFF")
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError as error:
        raise UsageError(f"WORKBENCH_TURN_OFF={text!r} is no JSON ({error}); unset it") from error
    if not isinstance(options, dict):
        raise UsageError(f"WORKBENCH_TURN_OFF={text!r} must be a JSON object of engine options; unset it")
    from_options(options)
    return options


def _same_unit(name: str, what: str, unit: str, other: str, other_unit: str) -> None:
    if unit != other_unit:
        raise UsageError(f"{name}: {what} in {unit!r} and {other} in {other_unit!r}: give both in one unit")


def _spread(measured: Measured) -> list[float] | None:
    return None if measured.low is None or measured.high is None else [measured.low, measured.high]


def _line(source: Mapping[str, Any]) -> str:
    """Provenance as one line."""
    commit = "no commit" if source["commit"] is None else source["commit"] + ("+changes" if source["dirty"] else "")
    device = source["device"]
    if device == "cpu":
        device = f"{source['cpu']}, {source['threads']} thread{'s' if source['threads'] != 1 else ''}"
    return f"{commit}, {source['date'][:16]}, {device}, torch {source['torch']}"
