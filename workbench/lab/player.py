"""Player: precomputed pictures to scrub through with a slider, the arrow keys or a play button."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from workbench.errors import UsageError
from workbench.lab.front import Shown
from workbench.lab.table import Table

_HEIGHT = 320
"""Pixels of the area where the frames do not say their height."""


class Player(Shown):
    """``frames``: SVG or HTML texts; ``labels``: for each frame a text that says the same, else those of the frames.

    ``description`` names what the slider counts. Nothing is computed while it plays. The area has one height, that of
    the tallest frame, so the page does not jump. Works without ipywidgets as far as `frames` and `value` go. Raises
    UsageError without frames.
    """

    def __init__(self, frames: Sequence[str], labels: Sequence[str] | None = None, description: str = "step") -> None:
        self.frames = tuple(frames)
        if not self.frames:
            raise UsageError("a Player of 0 frames shows nothing: give at least one")
        wrong = next((frame for frame in self.frames if not isinstance(frame, str)), None)
        if wrong is not None:
            raise UsageError(f"a frame is SVG or HTML text, not a {type(wrong).__name__}")
        given = labels if labels is not None else getattr(frames, "labels", None)
        self.labels = (
            tuple(given) if given is not None else tuple(f"{description} {n}" for n in range(len(self.frames)))
        )
        if len(self.labels) != len(self.frames):
            raise UsageError(f"{len(self.frames)} frames and {len(self.labels)} labels: give one label for each frame")
        self.description = description
        self._value = 0

    @property
    def value(self) -> int:
        """Index of the frame that is shown, from 0."""
        return self._value

    @value.setter
    def value(self, index: int) -> None:
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(self.frames):
            raise UsageError(f"value={index!r} is not the index of a frame, 0 to {len(self.frames) - 1}")
        self._value = index
        if self._widget is not None:
            self._slider.value = index

    @property
    def shown(self) -> str:
        """What the area shows now."""
        return self.frames[self._value] if self._widget is None else str(self._area.value)

    @property
    def height(self) -> int:
        """Pixels of the area of the pictures."""
        found = [re.match(r'\s*<svg [^>]*\bheight="([\d.]+)"', frame) for frame in self.frames]
        heights = [float(hit[1]) for hit in found if hit is not None]
        return int(max(heights)) + 8 if len(heights) == len(self.frames) else _HEIGHT

    def static(self) -> Table:
        """The same as a table: one row a frame."""
        return Table([self.description, "what it shows"], [[n, label] for n, label in enumerate(self.labels)])

    def _make(self) -> Any:
        import ipywidgets as widgets

        last = len(self.frames) - 1
        self._slider = widgets.IntSlider(
            value=self._value,
            max=last,
            description=f"{self.description} (of {last})",
            continuous_update=False,
            readout=True,
            tabbable=True,
            tooltip="arrow keys: one back, one on",
            style={"description_width": "initial"},
            layout={"width": "460px"},
        )
        play = widgets.Play(value=self._value, max=last, interval=700, tabbable=True, tooltip="play all frames")
        link = widgets.jslink((play, "value"), (self._slider, "value"))
        # Nobody else keeps the link alive.
        play.workbench_link = link
        self._label = widgets.HTML(layout={"min_height": "44px"})
        self._area = widgets.HTML(layout={"height": f"{self.height}px", "overflow": "auto"})
        self._slider.observe(self._on_slide, "value")
        self._draw()
        return widgets.VBox([widgets.HBox([play, self._slider]), self._label, self._area])

    def _on_slide(self, change: dict[str, Any]) -> None:
        self._value = change["new"]
        self._draw()

    def _draw(self) -> None:
        self._label.value = f'<div aria-live="polite">{escape(self.labels[self._value])}</div>'
        self._area.value = self.frames[self._value]

    def without_widgets(self) -> Any:
        return self.static()

    def __repr__(self) -> str:
        return f"Player({len(self.frames)} frames, {self.description} {self._value}: {self.labels[self._value]})"
