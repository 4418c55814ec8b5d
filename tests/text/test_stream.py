"""TextStream: stop strings wherever they fall, nothing shown that is taken back, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.sampling_params import SamplingParams
from workbench.text import stream as stream_room
from workbench.text.stream import TextStream


class Spelled:
    """Stands for a detokenizer: token i is the i-th piece of text."""

    pieces: tuple[str, ...] = ()

    def __init__(self, *_: object) -> None:
        pass

    def push(self, token_id: int) -> str:
        return self.pieces[token_id]

    def finish(self) -> str:
        return ""


@pytest.fixture(autouse=True)
def _spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_room, "Detokenizer", Spelled)


def run(pieces: tuple[str, ...], params: SamplingParams) -> tuple[TextStream, list[str], bool]:
    Spelled.pieces = pieces
    stream = TextStream(None, params)  # type: ignore[arg-type]
    taken, stopped = [], False
    for token_id in range(len(pieces)):
        stopped = stream.push(token_id)
        taken.append(stream.take())
        if stopped:
            break
    if not stopped:
        stream.finish()
        taken.append(stream.take())
    return stream, taken, stopped


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "included"),
    [
        (("Hello", " END", " more"), "END", "Hello ", "Hello END"),
        (("Hello E", "N", "D more"), "END", "Hello ", "Hello END"),
        (("aEaEN", "E", "END"), "END", "aEaENE", "aEaENEEND"),
        (("xx", "xa"), ["xxa", "xa"], "x", "xxxa"),
        (("one stop two", " stop"), ["two", "stop"], "one ", "one stop"),
        (("끝", "입니다", "."), "입니다", "끝", "끝입니다"),
    ],
)
def test_where_a_stop_string_ends_the_text(pieces, stop, text, included) -> None:
    stream, taken, stopped = run(pieces, SamplingParams(stop=stop))
    assert stopped and stream.text == text == "".join(taken)
    stream, taken, stopped = run(pieces, SamplingParams(stop=stop, include_stop_str_in_output=True))
    assert stopped and stream.text == "".join(taken)
    assert stream.text == included


def test_what_was_held_back_comes_at_the_end() -> None:
    stream, taken, stopped = run(("Hello E", "N"), SamplingParams(stop="END"))
    assert not stopped and stream.text == "Hello EN"
    assert taken == ["Hello ", "", "EN"], "only the possible beginning of the stop string waits"


def test_before_min_tokens_a_stop_string_is_text() -> None:
    Spelled.pieces = ("END", "a E", "ND")
    stream = TextStream(None, SamplingParams(stop="END"))  # type: ignore[arg-type]
    assert not stream.push(0, may_stop=False)
    assert not stream.push(1, may_stop=False)
    assert stream.push(2), "it spans the moment at which it begins to count"
    assert stream.text == "ENDa "


def chopped(text: str) -> Iterator[tuple[str, ...]]:
    yield tuple(text)
    yield (text,)
    yield tuple(text[i : i + 2] for i in range(0, len(text), 2))


@given(st.text("abE", max_size=24), st.lists(st.text("abE", min_size=1, max_size=4), min_size=1, max_size=3))
def test_any_text_against_a_plain_search(text: str, stops: list[str]) -> None:
    """Letter by letter the first stop string to be complete ends the text; nothing shown is ever taken back."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    stream, taken, stopped = run(tuple(text), SamplingParams(stop=stops))
    assert stopped == bool(ends)
    if ends:
        end = min(ends)[0]
        begins = [text[:end].find(stop) for stop in stops if text[:end].endswith(stop)]
        assert stream.text == text[: min(begins)]
    else:
        assert stream.text == text
    assert "".join(taken) == stream.text
    for pieces in chopped(text):
        other, _, also = run(pieces, SamplingParams(stop=stops))
        assert also == stopped
        assert not any(stop in other.text for stop in stops)
