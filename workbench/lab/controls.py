"""Controls over a function: ``explore(fn, {name: control(…)})`` calls it with their values and shows the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from math import prod
from typing import Any

from workbench.checks import shown
from workbench.errors import UsageError
from workbench.lab.front import Shown, as_html

SLOW_SECONDS = 0.2
"""From here on a function runs only when its button is pressed."""
MAX_VALUES = 200


@dataclass(frozen=True)
class Control:
    """A labelled choice among finitely many values, so that a test can try them all."""

    label: str
    values: tuple[Any, ...]
    default: Any
    unit: str
    kind: str
    """``slider``, ``dropdown`` or ``toggle``."""

    @property
    def description(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


def control(
    label: str,
    *,
    low: int | None = None,
    high: int | None = None,
    step: int = 1,
    choices: Sequence[Any] | None = None,
    default: Any = None,
    unit: str = "",
) -> Control:
    """A slider (``low`` and ``high``, whole numbers, both included), a list (``choices``), or, with a ``default`` of
    True or False alone, a switch. Without ``default`` the first value stands. Raises UsageError for anything else.
    """
    if not label:
        raise UsageError("a control needs a label that says what it sets")
    if choices is not None and (low is not None or high is not None):
        raise UsageError(f"control {label!r}: give choices, or low and high, not both")
    values: Sequence[Any]
    if choices is not None:
        if not isinstance(choices, (list, tuple, range)):
            raise UsageError(f"control {label!r}: choices={shown(choices)} is no list of values")
        kind, values = "dropdown", tuple(choices)
        if any(value in values[:index] for index, value in enumerate(values)):
            raise UsageError(f"control {label!r}: a choice stands twice in {list(values)}")
    elif low is not None and high is not None:
        if not all(type(number) is int for number in (low, high, step)):
            raise UsageError(f"control {label!r}: low={low}, high={high}, step={step}: a slider takes whole numbers; "
                             "give choices for others")  # fmt: skip
        if step < 1 or low > high:
            raise UsageError(f"control {label!r}: low={low}, high={high}, step={step}: low must not be above high, nor "
                             "step below 1")  # fmt: skip
        kind, values = "slider", range(low, high + 1, step)  # counted below before it is written out
    elif isinstance(default, bool):
        kind, values = "toggle", (False, True)
    else:
        raise UsageError(f"control {label!r}: give choices, low and high, or default=True or False")
    if not 0 < len(values) <= MAX_VALUES:
        raise UsageError(f"control {label!r} has {len(values)} values, not 1 to {MAX_VALUES}: use a larger step")
    values = tuple(values)
    default = values[0] if default is None else default
    if default not in values:
        raise UsageError(f"control {label!r}: the default {default!r} is none of its values {list(values)}")
    return Control(label, values, default, unit, kind)


def check_value(controls: Mapping[str, Control], name: str, value: Any) -> None:
    """Raises UsageError for a control that is not there or a value that it cannot have: True is not 1."""
    given = controls[name].values if name in controls else ()
    if not any(type(value) is type(one) and value == one for one in given):
        raise UsageError(f"{name}={shown(value)}: the controls are "
                         f"{ {key: list(one.values) for key, one in controls.items()} }")  # fmt: skip


def all_states(controls: Mapping[str, Control], before: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """All combinations of the controls' values up to ``limit``; beyond that each control alone, the others as
    ``before``."""
    choices = [given.values for given in controls.values()]
    if prod(map(len, choices)) <= limit:
        return [dict(zip(controls, values, strict=True)) for values in product(*choices)]
    return [{**before, name: value} for name, given in controls.items() for value in given.values]


class Explorer(Shown):
    """What `explore` and `run_button` return. ``values`` and ``result`` are there without ipywidgets too."""

    def __init__(
        self,
        fn: Callable[..., Any],
        controls: Mapping[str, Control],
        *,
        seconds: float = 0.0,
        height: int = 360,
        label: str = "Run",
        button: bool | None = None,
    ) -> None:
        for name, given in controls.items():
            if not isinstance(given, Control):
                raise UsageError(f"{name}={given!r} is no control: make one with control(label, …)")
        self.fn, self.controls, self.height = fn, dict(controls), height
        self.values = {name: given.default for name, given in controls.items()}
        self.has_button = seconds > SLOW_SECONDS if button is None else button
        self.label = f"{label} (about {seconds:.3g} s)" if seconds > 0 else label
        self.result: Any = None
        self.ran_with: dict[str, Any] | None = None
        """The values of the last call."""
        self.error: Exception | None = None
        """What the last call raised; the area shows it too."""
        self._area: Any = None

    def run(self) -> None:
        """Calls the function with the present values and shows the result, or the error."""
        self.ran_with = dict(self.values)
        try:
            self.result, self.error = self.fn(**self.values), None
            page = as_html(self.result)
        except Exception as error:  # a reader must see it: what a callback raises is lost in the server's log
            self.result, self.error = None, error
            page = f'<pre role="alert">failed: {escape(f"{type(error).__name__}: {error}")}</pre>'
        if self._area is not None:
            self._area.value = page

    def press(self) -> None:
        """As a reader does it: the button, where there is one; elsewhere the present values run."""
        if self.has_button and self._widget is not None:
            self._button.click()
        else:
            self.run()

    def set(self, name: str, value: Any) -> None:
        """As a reader does it: moves the control and, unless there is a button, runs.

        Raises UsageError for a value that the control cannot have.
        """
        check_value(self.controls, name, value)
        if self._widget is not None:
            self._inputs[name].value = value  # the observer does the rest
        elif self.values[name] != value:
            self._take(name, value)

    def _take(self, name: str, value: Any) -> None:
        self.values[name] = value
        if not self.has_button:
            self.run()
        elif self._area is not None:
            self._area.value = "<p>Not run with these values yet: press the button.</p>"

    def _make(self) -> Any:
        import ipywidgets as widgets

        self._inputs = {name: _input(widgets, given, self.values[name]) for name, given in self.controls.items()}
        for name, box in self._inputs.items():
            box.observe(lambda change, name=name: self._take(name, change["new"]), "value")
        self._area = widgets.HTML(layout={"height": f"{self.height}px", "overflow": "auto"})
        rows = list(self._inputs.values())
        if self.has_button:
            self._button = widgets.Button(
                description=self.label, tabbable=True, layout={"width": "auto", "align_self": "flex-start"}
            )
            self._button.on_click(self._on_press)
            rows.append(self._button)
        else:
            self.run()
        return widgets.VBox([*rows, self._area])

    def _on_press(self, button: Any) -> None:
        button.disabled = True
        self._area.value = "<p>Running …</p>"
        try:
            self.run()
        finally:
            button.disabled = False

    def without_widgets(self) -> Any:
        return repr(self)

    def __repr__(self) -> str:
        parts = [f"{given.description}: {self.values[name]}" for name, given in self.controls.items()]
        return f"controls({'; '.join(parts)})" if parts else f"button({self.label})"


def explore(
    fn: Callable[..., Any], controls: Mapping[str, Control], *, seconds: float = 0.0, height: int = 360
) -> Explorer:
    """Controls over ``fn(**values)``, which returns a Table, a figure or a text (SVG is drawn).

    ``seconds``: how long a call takes; over 0.2 it waits for a button. ``height``: pixels of the area of the result.
    """
    if not controls:
        raise UsageError("explore needs at least one control; for a function without any use run_button")
    return Explorer(fn, controls, seconds=seconds, height=height)


def run_button(fn: Callable[[], Any], *, seconds: float, label: str = "Run", height: int = 360) -> Explorer:
    """A button for what is too slow to run unasked; it says how many ``seconds`` it takes."""
    return Explorer(fn, {}, seconds=seconds, label=label, height=height, button=True)


def _input(widgets: Any, given: Control, value: Any) -> Any:
    common = {
        "description": given.description,
        "tabbable": True,
        "style": {"description_width": "initial"},
        "layout": {"width": "460px"},
    }
    if given.kind == "toggle":
        return widgets.Checkbox(value=value, indent=False, **common)
    if given.kind == "dropdown":
        return widgets.Dropdown(options=[(str(choice), choice) for choice in given.values], value=value, **common)
    step = given.values[1] - given.values[0] if len(given.values) > 1 else 1
    return widgets.IntSlider(
        value=value, min=given.values[0], max=given.values[-1], step=step, continuous_update=False, **common
    )
