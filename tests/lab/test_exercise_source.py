"""Skeleton and solution come from one source, and differ in the gaps only."""

from __future__ import annotations

import pytest

from workbench.lab import exercise_source as source

ONE = '''def area(width, height):
    """Of a rectangle."""
    # your turn: multiply
    found = width * height
    return found
    # end
'''
TWO = """def f(x):
    # your turn: first
    y = x + 1
    # end
    z = 2 * y
    if z:
        # your turn: second
        return z
        # end
    return 0
"""


def test_the_skeleton_says_what_to_do_and_raises():
    assert source.skeleton(ONE) == (
        'def area(width, height):\n    """Of a rectangle."""\n    raise NotImplementedError("your turn: multiply")\n'
    )
    with pytest.raises(NotImplementedError, match="your turn: multiply"):
        source.compiled(source.skeleton(ONE), "area")(2, 3)


def test_the_solution_has_no_markers():
    assert "your turn" not in source.solution(ONE) and "# end" not in source.solution(ONE)
    assert source.compiled(source.solution(ONE), "area")(2, 3) == 6


def test_two_gaps_keep_what_stands_between_and_their_indents():
    assert source.skeleton(TWO).splitlines() == [
        "def f(x):",
        '    raise NotImplementedError("your turn: first")',
        "    z = 2 * y",
        "    if z:",
        '        raise NotImplementedError("your turn: second")',
        "    return 0",
    ]
    assert source.compiled(source.solution(TWO), "f")(4) == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f():\n    return 1\n", "nothing to solve"),
        ("def f():\n    # your turn: x\n    return 1\n", "line 2: '# your turn' without '# end'"),
        ("def f():\n    return 1\n    # end\n", "line 3: '# end' without"),
        ("def f():\n    # your turn:\n    return 1\n    # end\n", "line 2: '# your turn:' does not say"),
        ("def f():\n    # your turn: x\n    # your turn: y\n    return 1\n    # end\n", "line 3: .* inside the gap"),
        ("def f():\n    # your turn: x\n    # end\n", "line 3: the gap is empty"),
    ],
)
def test_wrong_markers_are_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        source.skeleton(text)


def test_text_shows_as_it_is():
    assert repr(source.Text("a\nb")) == "a\nb"
