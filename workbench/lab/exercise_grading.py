"""Calls a reader's function with every case and says what came of it. Judges behaviour only."""

from __future__ import annotations

import ast
import contextlib
import dis
import inspect
import io
import linecache
import textwrap
from collections.abc import Callable, Sequence
from types import CodeType, TracebackType
from typing import Any

from workbench.lab.exercise_cases import Case, Difference, difference, short
from workbench.lab.exercise_result import FAILS, NOT_ATTEMPTED, PASSES, Failure, Result, printed_lines
from workbench.lab.exercise_source import NotAttempted
from workbench.lab.time_limit import OutOfTime, call_within

_EMPTY_BODY = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "COPY_FREE_VARS"}


def grade(exercise: str, function: Callable[..., Any], cases: Sequence[Case], seconds: float) -> Result:
    """Runs all cases, also after a failure, so that the result can tell which families pass; a case that runs for more
    than ``seconds`` ends it. ``not attempted`` only if the function did nothing in the first case."""
    counts = {case.family: [0, 0] for case in cases}
    for case in cases:
        counts[case.family][1] += 1
    first: Failure | None = None
    for number, case in enumerate(cases):
        try:
            failure = _failure(function, case, seconds)
        except NotAttempted as error:
            if number == 0:
                return Result(exercise, NOT_ATTEMPTED, reason=str(error))
            failure = Failure(_name(case), _inputs(function, case), "an answer", "nothing", words=str(error))
        except OutOfTime:
            words = f"it ran for more than {seconds:g} s: does every loop in it end? No case after this one was run"
            inputs = _inputs(function, case)
            first = first or Failure(_name(case), inputs, "an answer", "none in time", words=words, help=case.help)
            break
        if failure is None:
            counts[case.family][0] += 1
        first = first or failure
    families = tuple((family, passed, total) for family, (passed, total) in counts.items())
    return Result(exercise, FAILS if first else PASSES, families, first)


def _failure(function: Callable[..., Any], case: Case, seconds: float) -> Failure | None:
    """What is wrong in one case, None if nothing is. Raises NotAttempted for a stub and OutOfTime."""
    arguments, printed = case.make(), io.StringIO()
    inputs = _inputs(function, case)

    def failed(expected: str, got: str, where: str = "", line: str = "", words: str = "") -> Failure:
        text = printed_lines(printed.getvalue())
        return Failure(_name(case), inputs, expected, got, where, line, words, case.help, text)

    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        return failed(f"a function of {len(arguments)} arguments", f"{inspect.signature(function)}", words=str(error))
    except ValueError:
        pass  # a builtin that does not tell its signature
    wanted = case.expected(*case.make())
    try:
        with contextlib.redirect_stdout(printed):
            got = call_within(seconds, lambda: case.call(function, *arguments))
    except (Exception, SystemExit) as error:
        if isinstance(error, NotImplementedError) and _raised_by_hand(function, error):
            raise NotAttempted(str(error) or "it raises NotImplementedError") from None
        return failed(short(wanted), f"{type(error).__name__}: {error}", line=_line(function, error))
    if got is None and wanted is not None:
        if _is_stub(function):
            raise NotAttempted("there is nothing in it yet")
        return failed(short(wanted), "None", words="it returned nothing: is a return missing?")
    changed = _changed(function, case, arguments)
    if found := _found(case, wanted, got):
        return failed(found.expected, found.got, found.where, words="; ".join(filter(None, [found.words, changed])))
    return failed("the inputs as they were", "the right answer", words=changed) if changed else None


def _found(case: Case, wanted: Any, got: Any) -> Difference | None:
    if case.judge is not None:
        return case.judge(wanted, got, *case.make())
    return difference(wanted, got, (case.relative, case.absolute))


def _changed(function: Callable[..., Any], case: Case, arguments: tuple[Any, ...]) -> str:
    """Which input is no longer what it was, in words; empty if none."""
    for name, before, after in zip(_parameters(function, len(arguments)), case.make(), arguments, strict=True):
        if found := difference(before, after):
            place = f"{name}{found.where}"
            return f"your function changed its input: {place} was {found.expected} and is {found.got}; work on a copy"
    return ""


def _name(case: Case) -> str:
    return f"{case.family}: {case.name}"


def _inputs(function: Callable[..., Any], case: Case) -> tuple[tuple[str, str], ...]:
    arguments = case.make()
    named = zip(case.inputs or _parameters(function, len(arguments)), arguments, strict=True)
    return tuple((name, short(value)) for name, value in named)


def _parameters(function: Callable[..., Any], count: int) -> list[str]:
    try:
        names = list(inspect.signature(function).parameters)[:count]
    except ValueError:
        names = []
    return names + [f"argument {number}" for number in range(len(names), count)]


def _code(function: Callable[..., Any]) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _last_own_frame(function: Callable[..., Any], error: BaseException) -> tuple[TracebackType | None, bool]:
    """The innermost frame in the reader's own file or cell, and whether it is the innermost of all."""
    code, found, last, trace = _code(function), None, None, error.__traceback__
    while trace is not None:
        if code is not None and trace.tb_frame.f_code.co_filename == code.co_filename:
            found = trace
        last, trace = trace, trace.tb_next
    return found, found is last


def _raised_by_hand(function: Callable[..., Any], error: NotImplementedError) -> bool:
    """Whether a ``raise`` in the reader's own code raised it. PyTorch raises the same error for what it cannot do."""
    trace, innermost = _last_own_frame(function, error)
    if trace is None or not innermost:
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _line(function: Callable[..., Any], error: BaseException) -> str:
    trace, _ = _last_own_frame(function, error)
    if trace is None:
        return ""
    number = trace.tb_lineno
    return f"{number}: {linecache.getline(trace.tb_frame.f_code.co_filename, number).strip()}".rstrip(": ")


def _is_stub(function: Callable[..., Any]) -> bool:
    """Whether the function holds nothing (``pass``, a docstring) or still has a line that is only ``...``."""
    code = _code(function)
    if code is None:
        return False
    if {instruction.opname for instruction in dis.get_instructions(code)} <= _EMPTY_BODY:
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    return any(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is Ellipsis
        for node in ast.walk(tree)
    )
