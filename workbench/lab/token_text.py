"""What a token looks like: one readable text for each, also where tokens cut a character in two."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Callable, Sequence

from workbench.text.tokenizer import Tokenizer

TokenTexts = Callable[[Sequence[int]], list[str]]
"""Token ids to one text for each."""
_SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍"}
_JOINERS = "\u200c\u200d"
"""They join the parts of one emoji, or keep letters of one word apart: alone among format characters they may stay."""
CUT = "…"
"""Stands for a token that ends inside a character; the one that completes it shows the character."""


def token_texts(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """One text for each token, as `visible` shows it; special tokens as they are spelled.

    A token that ends inside a character ends in ``…``, and the character stands with the token that completes it. Bytes
    that are part of no character, as where the tokens begin inside one, are told in hexadecimal: ``\\xed``.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    found: list[str] = []
    for token_id in token_ids:
        text = decoder.decode(tokenizer.token_bytes(token_id))
        found.append(visible(text) + (CUT if decoder.getstate()[0] else ""))
    return found


def texts_of(tokenizer: Tokenizer) -> TokenTexts:
    """`token_texts` with this tokenizer."""
    return lambda token_ids: token_texts(tokenizer, token_ids)


def numbers(token_ids: Sequence[int]) -> list[str]:
    """Where there is no tokenizer: the ids themselves."""
    return [f" {token_id}" for token_id in token_ids]


def visible(text: str) -> str:
    """The text on one line: a line break as ``↵``, a tab as ``⇥``, what cannot be seen as its number."""
    return "".join(_SIGNS.get(c) or (c if _is_seen(c) else f"\\u{ord(c):04x}") for c in text)


def joined(texts: Sequence[str]) -> str:
    """Texts of tokens in a row; ``…`` goes where the next token completes the character."""
    last = len(texts) - 1
    return "".join(text if at == last else text.removesuffix(CUT) for at, text in enumerate(texts))


def shorten(text: str, limit: int) -> str:
    """Head and tail of a text of more than ``limit`` characters."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 3
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def spaced(text: str) -> str:
    """Spaces that a page would swallow, at the ends and beside one another, as ``␣``."""
    inner = text.strip(" ")
    if not inner:
        return "␣" * len(text)
    head, tail = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    return "␣" * head + inner.replace("  ", "␣␣") + "␣" * tail


def _is_seen(character: str) -> bool:
    kind = unicodedata.category(character)
    return (kind[0] != "C" and kind not in ("Zl", "Zp")) or character in _JOINERS
