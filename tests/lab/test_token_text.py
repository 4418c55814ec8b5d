"""Texts of tokens: nothing lost, characters that tokens cut in two shown once and whole, nothing unseen."""

from __future__ import annotations

import pytest

from tests.text.test_detokenizer import shared
from workbench.lab.token_text import CUT, joined, shorten, spaced, token_texts, visible

TEXTS = ["Hi, what is the weather like today?", "안녕하세요", "👩‍👩‍👧‍👦 and 🇰🇷", "a\n\tb\r", " two  spaces ",
         "<b>&amp;</b>", "<|im_start|>user"]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_tokens_add_up_to_the_text(text: str) -> None:
    tokens = shared().encode(text)
    texts = token_texts(shared(), tokens)
    assert len(texts) == len(tokens)
    assert joined(texts) == visible(text)
    assert all(texts)


def test_a_cut_character_stands_with_the_token_that_completes_it() -> None:
    texts = token_texts(shared(), shared().encode("안a"))
    assert texts[:-1] == [CUT] * (len(texts) - 2) + ["안"] and texts[-1] == "a"
    assert len(texts) == 4, "the vocabulary spells this syllable with three bytes"


def test_cut_ends_are_told() -> None:
    tokens = shared().encode("안")
    assert token_texts(shared(), tokens[:2]) == [CUT, CUT]
    assert token_texts(shared(), tokens[1:]) == ["\\x95", "\\x88"]
    assert token_texts(shared(), [tokens[0], *shared().encode("a")]) == [CUT, "\\xeca"]
    assert token_texts(shared(), []) == []


def test_what_cannot_be_seen_has_a_sign() -> None:
    assert visible("a\nb\tc\rd") == "a↵b⇥c␍d"
    assert visible("\x00\x1b\u202e\u2028\ufeff") == "\\u0000\\u001b\\u202e\\u2028\\ufeff"
    assert visible("👩‍👩‍👧") == "👩‍👩‍👧" and visible("é한") == "é한"


def test_spaces_that_a_page_swallows_have_a_sign() -> None:
    assert spaced(" a b  c ") == "␣a b␣␣c␣"
    assert spaced("   ") == "␣␣␣" and spaced("") == ""
    for count in range(1, 7):
        assert spaced("a" + " " * count + "b").replace("␣", " ") == "a" + " " * count + "b"
        assert "  " not in spaced("a" + " " * count + "b")


@pytest.mark.parametrize("limit", [3, 4, 10, 25, 26, 27])
def test_a_long_text_keeps_head_and_tail(limit: int) -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    short = shorten(text, limit)
    assert len(short) == min(limit, 26)
    head, _, tail = short.partition("…")
    assert short == text if limit >= 26 else text.startswith(head) and text.endswith(tail) and head
