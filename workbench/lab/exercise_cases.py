"""Cases that an exercise is checked with, and the comparison of two answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

BY_HAND = "by hand"
_NOT_LITERAL = (math.inf, -math.inf)


@dataclass(frozen=True, slots=True)
class Case:
    """One call: ``function(*make())`` must give what ``expected(*make())`` gives.

    ``make`` returns fresh arguments each time, so that no call sees what another one did to them.
    Floats may differ by ``relative`` × the expected number or by ``absolute``, whichever is more; two whole numbers
    may not.
    """

    family: str
    """``by hand``, ``random``, ``ragged``, ``single``, … : what this case is there to find."""
    name: str
    make: Callable[[], tuple[Any, ...]]
    expected: Callable[..., Any]
    relative: float = 1e-9
    absolute: float = 0.0
    help: str = ""
    """What to think of when this is the case that fails."""
    call: Callable[..., Any] = lambda function, *arguments: function(*arguments)
    """How the function is called: as it is, or, say, once for each item of the one argument."""
    inputs: tuple[str, ...] = ()
    """What a failure calls the arguments; without it the function's own names, right where it gets just them."""
    judge: Callable[..., Difference | None] | None = None
    """Where more than one answer is right: ``judge(expected, got, *make())`` says what is wrong with ``got``, if
    anything is. Without it the answer must be the expected one."""


def fixed(*arguments: Any) -> Callable[[], tuple[Any, ...]]:
    """The `Case.make` of a case whose arguments are written down: a copy of them on every call."""
    return lambda: deepcopy(arguments)


class Example(NamedTuple):
    """A call that can be checked by hand: shown in the specification, and the first cases of the check."""

    arguments: tuple[Any, ...]
    result: Any
    help: str = ""

    def as_assert(self, function: str, given: Mapping[str, Any]) -> str:
        """As a line of code; ``given``: names for values that are long to write."""
        texts = [
            next((name for name, value in given.items() if value is argument), repr(argument))
            for argument in self.arguments
        ]
        result = f"float({str(self.result)!r})" if self.result in _NOT_LITERAL else repr(self.result)
        return f"assert {function}({', '.join(texts)}) == {result}"


class Difference(NamedTuple):
    where: str
    """Index of the first number that differs, ``[1][0]``; empty = the whole answer."""
    expected: str
    got: str
    words: str
    """What is wrong, if the two texts do not say it."""


def refuse_all_equal(cases: Iterable[Case]) -> None:
    """Raises ValueError for a case whose list of numbers holds one number again and again: wrong answers pass such."""
    for case in cases:
        for argument in case.make():
            values = _plain(argument)
            if isinstance(values, list) and len(values) > 1 and all(value == values[0] for value in values[1:]):
                raise ValueError(f"case {case.family}/{case.name}: all values of an input are equal")


def difference(
    expected: Any, got: Any, tolerance: tuple[float, float] = (0.0, 0.0), where: str = ""
) -> Difference | None:
    """The first place where two answers differ, None if there is none. Arrays are compared by shape and number.

    ``tolerance``: (relative, absolute), for floats.
    """
    if _is_array(expected):
        if not _is_array(got):
            return _other(expected, got, where, f"an array was expected, not a {type(got).__name__}")
        if tuple(got.shape) != tuple(expected.shape):
            return Difference(where, f"shape {tuple(expected.shape)}", f"shape {tuple(got.shape)}", "")
        return difference(expected.tolist(), got.tolist(), tolerance, where)
    if isinstance(expected, Mapping):
        return _mappings(expected, got, tolerance, where)
    if isinstance(expected, (list, tuple)):
        return _sequences(expected, got, tolerance, where)
    if isinstance(expected, Real) and not isinstance(expected, bool):
        return _numbers(expected, got, tolerance, where)
    if type(expected) is not type(got) or expected != got:
        return _other(expected, got, where, _kinds(expected, got))
    return None


def short(value: Any, most: int = 300) -> str:
    """A value as text, long ones with their middle left out."""
    try:
        text = repr(value)
    except Exception as error:  # a reader's own class may be broken in this way too
        text = f"<a {type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 3 :]}"


def _mappings(expected: Mapping[Any, Any], got: Any, tolerance: tuple[float, float], where: str) -> Difference | None:
    if not isinstance(got, Mapping):
        return _other(expected, got, where, _kinds(expected, got))
    for key in [*expected, *(key for key in got if key not in expected)]:
        if key not in got or key not in expected:
            what = "missing" if key not in got else "not expected"
            return _other(sorted(map(repr, expected)), sorted(map(repr, got)), where, f"the key {key!r} is {what}")
        if found := difference(expected[key], got[key], tolerance, f"{where}[{key!r}]"):
            return found
    return None


def _sequences(expected: Sequence[Any], got: Any, tolerance: tuple[float, float], where: str) -> Difference | None:
    # A tuple for a list is no mistake, and neither is an array that holds the same numbers.
    values = got.tolist() if _is_array(got) else got
    if not isinstance(values, (list, tuple)):
        return _other(expected, got, where, _kinds(expected, got))
    if len(values) != len(expected):
        return Difference(where, short(expected), short(got), f"{len(expected)} values expected, {len(values)} came")
    for number, (wanted, value) in enumerate(zip(expected, values, strict=True)):
        if found := difference(wanted, value, tolerance, f"{where}[{number}]"):
            return found
    return None


def _numbers(expected: Real, got: Any, tolerance: tuple[float, float], where: str) -> Difference | None:
    if isinstance(got, bool) or not isinstance(got, Real):
        return _other(expected, got, where, f"a number was expected, not a {type(got).__name__}")
    if expected == got or (math.isnan(expected) and math.isnan(got)):
        return None
    exact = isinstance(expected, Integral) and isinstance(got, Integral)
    if exact or not math.isclose(expected, got, rel_tol=tolerance[0], abs_tol=tolerance[1]):
        comparable = expected and got and math.isfinite(expected) and math.isfinite(got)
        ratio = f"{float(got) / float(expected):.4g} times what was expected" if comparable else ""
        return _other(expected, got, where, ratio)
    return None


def _other(expected: Any, got: Any, where: str, words: str = "") -> Difference:
    return Difference(where, short(expected), short(got), words)


def _kinds(expected: Any, got: Any) -> str:
    if type(expected) is type(got):
        return ""
    return f"a {type(expected).__name__} was expected, not a {type(got).__name__}"


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "tolist") and not isinstance(value, Real)


def _plain(value: Any) -> Any:
    if _is_array(value):
        flat = value.reshape(-1).tolist()
        return flat if isinstance(flat, list) else [flat]
    return list(value) if isinstance(value, (list, tuple)) else value
