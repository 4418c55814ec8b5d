"""One source for an exercise: the skeleton that a reader starts from and the solution come from the same lines.

A solution is an ordinary function. What the reader is to write stands in it between two markers::

    # your turn: what to do, in words
    return width * height
    # end

The skeleton has one line in that place that raises NotImplementedError; the solution as shown has no markers.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

WIDTH = 88
"""Letters that fit into a line of code beside a notebook's margin; JupyterLab breaks a longer one within a word."""
_BEGIN = re.compile(r"^(\s*)# your turn:\s*(.*)$")
_END = re.compile(r"^\s*# end\s*$")


class NotAttempted(NotImplementedError):
    """What a stub may raise. A skeleton raises its builtin parent, so that a cell with it needs no import."""


class Gap(NamedTuple):
    begin: int
    """Index of the line that opens the gap; the lines in between are the reader's to write."""
    end: int
    """Index of the line that closes it."""
    indent: str
    words: str


class Text(str):
    """Text that shows as it is when it is the last line of a cell."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def source_of(function: Callable[..., Any]) -> str:
    """The source of a function with its markers, dedented, with one newline at the end."""
    return textwrap.dedent(inspect.getsource(function)).rstrip() + "\n"


def signature(source: str) -> str:
    """The first line of a function, without its colon; one parameter to a line where one line is too wide to show."""
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"def {node.name}({ast.unparse(node.args)}){returns}"
    if len(line) <= WIDTH:
        return line
    # A comma between parameters is followed by a name and a colon or an equals sign; one inside brackets is not.
    parameters = re.sub(r", (?=\*|\w+[:=])", ",\n    ", ast.unparse(node.args))
    return f"def {node.name}(\n    {parameters},\n){returns}"


def wrapped(line: str) -> str:
    """A line that assigns a literal, over as many lines as it takes. Strings in it must have no spaces."""
    return textwrap.fill(line, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def gaps(source: str) -> list[Gap]:
    """The gaps in order. Raises ValueError for a marker without its partner, without words, or for no gap at all."""
    found: list[Gap] = []
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(source.splitlines()):
        if begin := _BEGIN.match(line):
            if opened:
                raise ValueError(f"line {number + 1}: '# your turn' inside the gap of line {opened[0] + 1}")
            if not begin[2].strip():
                raise ValueError(f"line {number + 1}: '# your turn:' does not say what to do")
            opened = (number, begin[1], begin[2].strip())
        elif _END.match(line):
            if not opened:
                raise ValueError(f"line {number + 1}: '# end' without '# your turn: …' before it")
            if number == opened[0] + 1:
                raise ValueError(f"line {number + 1}: the gap is empty")
            found.append(Gap(opened[0], number, *opened[1:]))
            opened = None
    if opened:
        raise ValueError(f"line {opened[0] + 1}: '# your turn' without '# end' after it")
    if not found:
        raise ValueError("there is no '# your turn: …' in this source, so there is nothing to solve")
    return found


def skeleton(source: str) -> str:
    """The source with every gap replaced by one line that raises NotImplementedError and says what to write."""
    lines = source.splitlines()
    for gap in reversed(gaps(source)):
        words = f"your turn: {gap.words}"
        lines[gap.begin : gap.end + 1] = [f'{gap.indent}raise NotImplementedError("{words}")']
    return "\n".join(lines) + "\n"


def solution(source: str) -> str:
    """The source without its markers."""
    markers = {line for gap in gaps(source) for line in (gap.begin, gap.end)}
    return "".join(f"{line}\n" for number, line in enumerate(source.splitlines()) if number not in markers)


def compiled(source: str, name: str, filename: str = "<exercise>") -> FunctionType:
    """The function ``name`` that ``source`` defines, in a namespace of its own: what a fresh notebook would make."""
    namespace: dict[str, Any] = {"__name__": "__exercise__"}
    exec(compile(source, filename, "exec"), namespace)
    # As in a notebook, where inspect finds what stands in a cell; Triton compiles from that.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    found = namespace[name]
    assert isinstance(found, FunctionType)
    return found
