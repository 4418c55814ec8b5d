"""Shows something amid a cell: rich in a notebook, as text where there is none."""

from __future__ import annotations

from typing import Any


def show_now(thing: Any) -> None:
    """Like IPython's ``display``, which is not needed: a bare GPU box may run a notebook's code without Jupyter."""
    try:
        from IPython.display import display
    except ImportError:
        print(repr(thing))
    else:
        display(thing)
