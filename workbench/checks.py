"""What every edge asks of what it is given: is it a number, is it JSON, and how is it told in an error. No torch.

The words of a refusal are its caller's; here is only what all of them would otherwise each decide anew.
"""

from __future__ import annotations

import json
import math
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError

MAX_WHOLE = 2**63 - 1
"""The most that a whole number may be where nothing sets a tighter limit: what 64 bits hold."""

_SHOWN = 80


def as_whole(value: Any) -> int | None:
    """``value`` as an int if it is a whole number of any kind (numpy's too), else None. True and 1.0 are none."""
    if type(value) is int:  # first, because prompts are long
        return value
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def as_real(value: Any) -> float | None:
    """``value`` as a float if it is a number of any kind, else None. One beyond every float becomes ±infinity."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number: Any = value
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def shown(value: Any) -> str:
    """``value`` as an error shows it: on one line and cut where it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # Python refuses to write out very long numbers, and others' reprs may do anything
        text = f"<{type(value).__name__} that cannot be written out>"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN * 3 // 4]}…{text[-_SHOWN // 8 :]}"


def as_token_ids(value: Any) -> tuple[int, ...] | None:
    """A token id, a list of them or None (no token), as a tuple; None if it is something else.

    Configurations write −1 for "there is none"; such an id stands for no token and is left out.
    """
    listed = list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]
    ids = [as_whole(one) for one in listed]
    found = tuple(one for one in ids if one is not None and -1 <= one <= MAX_WHOLE)
    return tuple(one for one in found if one >= 0) if len(found) == len(listed) else None


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that ``text`` is. Raises WorkbenchError that says what is wrong with "it"."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkbenchError(f"it is not whole JSON ({error})") from None
    if not isinstance(found, dict):
        raise WorkbenchError(f"it is a JSON {type(found).__name__}, not an object")
    return found


def read_json_object(file: Path) -> dict[str, Any]:
    """The JSON object that a file holds. Raises WorkbenchError that names the file."""
    try:
        return json_object(file.read_text(encoding="utf-8"))
    except (WorkbenchError, UnicodeDecodeError, OSError) as error:
        raise WorkbenchError(f"{file} cannot be read: {error}; mend it or fetch it again") from None
