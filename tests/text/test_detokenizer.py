"""Text as tokens come: the deltas add up to the whole text, and no character is ever shown in parts."""

from __future__ import annotations

import inspect
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.tokenizers_made import MADE, load
from workbench.model import store
from workbench.text.detokenizer import Detokenizer
from workbench.text.tokenizer import Tokenizer

BROKEN = "\N{REPLACEMENT CHARACTER}"
TEXTS = [
    "",
    "Hello, world",
    "안녕하세요, 세계! 한글",
    "😀👩‍👩‍👧‍👦🇰🇷 e\u0301",
    "def f(x):\n    return x  1\n",
    "<|im_start|>a<|im_end|>",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return shared()


_shared: list[Tokenizer] = []


def shared() -> Tokenizer:
    if not _shared:
        _shared.append(Tokenizer.from_source(store.locate("smollm2-135m")))
    return _shared[0]


def single_bytes(tokenizer: Tokenizer) -> dict[int, int]:
    """Byte -> the token that is just this byte, as far as the vocabulary has one."""
    return {piece[0]: i for i in range(17, 1000) if len(piece := tokenizer.token_bytes(i)) == 1}


def stream(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip)
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("skip", [True, False])
def test_deltas_add_up(tokenizer: Tokenizer, text: str, skip: bool):
    ids = tokenizer.encode(text)
    deltas = stream(tokenizer, ids, skip=skip)
    assert "".join(deltas) == tokenizer.decode(ids, skip)
    assert not any(BROKEN in delta for delta in deltas) and deltas[-1] == ""
    if not skip:
        assert "".join(deltas) == text


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 49200), max_size=30), st.booleans())
def test_any_ids(ids: list[int], skip: bool):
    assert "".join(stream(shared(), ids, skip)) == shared().decode(ids, skip)


# Bytes on their own: characters of every length, cut anywhere, and nonsense between them.
fragments = st.one_of(
    st.sampled_from(["한", "글", "😀", "👩‍👩‍👧", "é", "a", " ", "\n"]).map(str.encode),
    st.text(st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3), max_size=3).map(str.encode),
    st.binary(max_size=4),
    st.sampled_from(
        [b"\xf0\x9f", b"\xed\xa0\x80", b"\xe0\x80", b"\xf4\x90", b"\x80\x80", b"\xf0\x9f\x98A", b"\xe2\x82"]
    ),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(fragments, max_size=8).map(b"".join))
def test_bytes_one_by_one(data: bytes):
    by_byte = single_bytes(shared())
    data = bytes(byte for byte in data if byte in by_byte)
    ids = [by_byte[byte] for byte in data]
    deltas = stream(shared(), ids)
    assert "".join(deltas) == data.decode("utf-8", "replace") == shared().decode(ids)
    # A delta is only ever a whole character, or a mark for bytes that can no longer become one.
    for end in range(len(data) + 1):
        shown = "".join(deltas[:end])
        assert data.decode("utf-8", "replace").startswith(shown)
        # At most one character waits. Two marks may: Python's decoder keeps ED A0, the start of half a surrogate pair,
        # until a third byte comes, though no byte can save it.
        waiting = len(data[:end].decode("utf-8", "replace")) - len(shown)
        assert waiting <= (2 if data[:end][-2:-1] == b"\xed" else 1)


@pytest.mark.parametrize("character", ["한", "😀", "é"])
def test_each_character_is_shown_once_when_its_last_byte_comes(tokenizer: Tokenizer, character: str):
    by_byte = single_bytes(tokenizer)
    ids = [by_byte[byte] for byte in character.encode()]
    assert stream(tokenizer, ids) == [""] * (len(ids) - 1) + [character, ""]


@pytest.mark.parametrize("character", ["한", "😀", "é"])
def test_a_prompt_that_ends_inside_a_character_does_not_leak(tokenizer: Tokenizer, character: str):
    """The output starts with the character's rest, which alone is no character: one mark for each stray byte."""
    by_byte = single_bytes(tokenizer)
    rest = [by_byte[byte] for byte in character.encode()][1:]
    deltas = stream(tokenizer, [*rest, *tokenizer.encode("ok")])
    assert "".join(deltas) == BROKEN * len(rest) + "ok" == tokenizer.decode([*rest, *tokenizer.encode("ok")])


def test_every_argument_has_an_effect():
    """A parameter that nobody reads promises what is not kept."""
    assert list(inspect.signature(Detokenizer).parameters) == ["tokenizer", "skip_special_tokens"]


def test_an_output_that_ends_inside_a_character_is_flushed(tokenizer: Tokenizer):
    by_byte = single_bytes(tokenizer)
    ids = [*tokenizer.encode("ok"), *(by_byte[byte] for byte in "😀".encode()[:3])]
    assert stream(tokenizer, ids)[-4:] == ["", "", "", BROKEN]


def test_special_tokens_inside_a_character_do_not_break_it(tokenizer: Tokenizer):
    by_byte = single_bytes(tokenizer)
    a, b, c = (by_byte[byte] for byte in "한".encode())
    assert "".join(stream(tokenizer, [a, 2, b, 1, c])) == "한" == tokenizer.decode([a, 2, b, 1, c])
    shown = "".join(stream(tokenizer, [a, 2, b, c], skip=False))
    assert shown == f"{BROKEN}<|im_end|>{BROKEN}{BROKEN}" == tokenizer.decode([a, 2, b, c], False)


@pytest.fixture(scope="module", params=MADE)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(tmp_path_factory.mktemp("made"), request.param)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_other_families(made: Tokenizer, data: st.DataObject, skip: bool):
    """SentencePiece-like ones by their bytes, WordPiece and tokenizers without a decoder through a window."""
    ids = data.draw(st.lists(st.integers(0, made.vocab_size + 3), max_size=25))
    assert "".join(stream(made, ids, skip=skip)) == made.decode(ids, skip)


def test_other_families_show_text_early(made: Tokenizer):
    ids = made.encode("the quick brown fox jumps over the lazy dog")
    deltas = stream(made, ids)
    assert "".join(deltas) == made.decode(ids) and deltas[-1] == ""
    assert sum(map(bool, deltas)) >= len(ids) - 1


def test_the_leading_space_goes_once(tmp_path: Path):
    made = load(tmp_path, "llama")
    two_spaces = made.encode("  the")
    assert stream(made, two_spaces)[-1] == "" and "".join(stream(made, two_spaces)) == "  the"
    space = made.transformers.convert_tokens_to_ids("▁")
    assert "".join(stream(made, [space, space, space])) == "  "


def test_constant_time_a_token(tokenizer: Tokenizer):
    """Forty times the tokens take about forty times as long: generous, but quadratic would be sixteen hundred."""

    def seconds(count: int) -> float:
        detokenizer, best = Detokenizer(tokenizer), float("inf")
        ids = (tokenizer.encode("안녕 😀 the quick fox. ") * count)[:count]
        for _ in range(3):
            detokenizer, start = Detokenizer(tokenizer), time.perf_counter()
            for token in ids:
                detokenizer.push(token)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(40_000) < 400 * seconds(1_000)
