"""Where a notebook's things are shown: a front end with widgets, a notebook without, or a terminal; and how."""

from __future__ import annotations

import base64
import importlib.util
import io
import os
import sys
from html import escape
from typing import Any


class Shown:
    """A thing with controls: a widget where there is a front end for it, and what `without_widgets` gives elsewhere.

    ``_widget`` is None until it is first asked for.
    """

    _widget: Any = None

    @property
    def widget(self) -> Any:
        """The ipywidgets box, made when first asked for."""
        if self._widget is None:
            self._widget = self._make()
        return self._widget

    def without_widgets(self) -> Any:
        """What is shown where no widget can be."""
        raise NotImplementedError

    def _make(self) -> Any:
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        if has_widgets():
            show_as_is(self.widget)
        else:
            emit(self.without_widgets())


def has_widgets() -> bool:
    """Whether controls can be shown: a Jupyter kernel runs this, ipywidgets is here, WORKBENCH_STATIC is not ``1``."""
    if os.environ.get("WORKBENCH_STATIC") == "1" or importlib.util.find_spec("ipywidgets") is None:
        return False
    shell = _shell()
    return shell is not None and getattr(shell, "kernel", None) is not None


def emit(thing: Any) -> None:
    """Shows a Table, a matplotlib figure (as a PNG, which every reader of notebooks draws), a text or a callable's
    result; without IPython it prints it."""
    if callable(thing) and not isinstance(thing, type):
        thing = thing()
    if thing is None:
        return
    if _is_figure(thing):
        _close(thing)
        if _shell() is None:
            print(f"<figure: {alternative(thing)}>")
            return
        from IPython import display

        show_as_is(display.Image(data=png(thing), alt=alternative(thing)))
    elif isinstance(thing, str) or _shell() is None:
        print(thing if isinstance(thing, str) else repr(thing))
    else:
        show_as_is(thing)


def show_as_is(thing: Any) -> None:
    """Hands a thing to the notebook that runs this, in whatever forms the thing has."""
    from IPython import display

    display.display(thing)


def as_html(thing: Any) -> str:
    """A thing as HTML for one persistent area: SVG as it stands, other text escaped, a figure as a PNG in place."""
    if thing is None:
        return ""
    if isinstance(thing, str):
        return thing if thing.lstrip().startswith("<svg") else f"<pre>{escape(thing)}</pre>"
    if _is_figure(thing):
        _close(thing)
        data = base64.b64encode(png(thing)).decode()
        return f'<img style="max-width:100%" alt="{escape(alternative(thing))}" src="data:image/png;base64,{data}">'
    if hasattr(thing, "_repr_html_"):
        return str(thing._repr_html_())
    return f"<pre>{escape(repr(thing))}</pre>"


def png(figure: Any) -> bytes:
    """On an opaque ground unless the figure has one: black axes on a dark page cannot be read."""
    file = io.BytesIO()
    ground = figure.get_facecolor()
    figure.savefig(file, format="png", dpi=110, bbox_inches="tight", facecolor=ground if ground[3] == 1 else "white")
    return file.getvalue()


def alternative(figure: Any) -> str:
    """What a figure says to one who cannot see it: its title and the titles of its axes."""
    titles = [figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""]
    titles += [axes.get_title() for axes in figure.axes]
    return "; ".join(title for title in titles if title) or "figure without a title"


def _is_figure(thing: Any) -> bool:
    # Whoever holds a figure has matplotlib loaded; nobody else must load it.
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(thing, module.Figure)


def _close(figure: Any) -> None:
    """Else the inline backend shows it once more at the end of the cell."""
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(figure)


def _shell() -> Any:
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()
