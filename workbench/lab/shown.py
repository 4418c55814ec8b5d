"""show: what can be read anywhere first, then what can be moved; and drive, which moves everything in a test."""

from __future__ import annotations

from typing import Any

from workbench.errors import UsageError
from workbench.lab.controls import Explorer, all_states
from workbench.lab.front import Shown, emit, has_widgets, show_as_is
from workbench.lab.player import Player


def show(widget: Any, static: Any) -> None:
    """Shows ``static``, and below it ``widget`` where there is a front end that can show one.

    ``static`` is a Table, a matplotlib figure (shown as PNG), a text, or a function that makes one of these: forms that
    survive on web pages which show notebooks without running them. SVG often does not, so it is refused here and lives
    in the widget only. With WORKBENCH_STATIC=1, outside a Jupyter kernel, or without ipywidgets, that is all.
    """
    made = static() if callable(static) else static
    if made is None:
        raise UsageError("static=None: give a table, a figure or a text that says what the widget shows")
    if isinstance(made, str) and made.lstrip().startswith("<svg"):
        raise UsageError("static is SVG, which many readers of notebooks do not draw: give a Table or a figure")
    emit(made)
    if has_widgets():
        show_as_is(widget)


def drive(widget: Any, limit: int = 100) -> int:
    """Moves a `Player`, an `Explorer` or what has a ``drive`` of its own through all it can show and raises the first
    error; returns how many states.

    All combinations of the values of its controls up to ``limit``; beyond that each control alone, the others at their
    defaults. Where ipywidgets is installed the real controls are moved. Afterwards everything stands as before.
    """
    _attach(widget)
    if isinstance(widget, Player):
        return _drive_player(widget)
    if isinstance(widget, Explorer):
        return _drive_explorer(widget, limit)
    if hasattr(widget, "drive"):
        return int(widget.drive(limit))
    raise UsageError(f"drive moves a Player or an Explorer, not a {type(widget).__name__}")


def _attach(widget: Any) -> None:
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return
    if isinstance(widget, Shown):
        assert widget.widget is not None


def _drive_player(player: Player) -> int:
    before = player.value
    # The last first, so that the first frame is a change too.
    for index in [*reversed(range(len(player.frames))), before]:
        player.value = index
        shown = player.shown
        if shown != player.frames[index]:
            raise AssertionError(f"frame {index} was asked for and another is shown")
    return len(player.frames)


def _drive_explorer(explorer: Explorer, limit: int) -> int:
    before = dict(explorer.values)
    states = all_states(explorer.controls, before, limit)
    for state in [*states, before]:
        for name, value in state.items():
            explorer.set(name, value)
        if explorer.has_button or explorer.ran_with != state:
            explorer.press()
        if explorer.values != state:
            raise AssertionError(f"{state} was set and the controls stand at {explorer.values}")
        if explorer.error is not None:
            raise explorer.error
    return len(states)
