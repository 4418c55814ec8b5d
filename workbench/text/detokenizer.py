"""Text from tokens as they come: no character is shown before it is whole, and nothing is computed twice.

Definition: the deltas in a row, with `finish`, are ``tokenizer.decode(all tokens pushed)``. The prompt has no part in
it, so none of it can leak, even when it ends inside a character whose rest is the first output token.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from workbench.text.tokenizer import Tokenizer

# A character is at most four bytes of UTF-8, so at most three tokens can be part of one that is not whole.
_LONGEST_WAIT = 4


class Detokenizer:
    """Text deltas of one output, token by token.

    Args:
        tokenizer: whose ids they are.
        skip_special_tokens: whether special tokens are left out, as in `Tokenizer.decode`.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        exact = tokenizer.pieces.exact
        self._strategy: _Strategy = (_Bytes if exact else _Window)(tokenizer, skip_special_tokens)

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes; empty while a character is unfinished. Amortised constant time."""
        return self._strategy.push(token_id)

    def finish(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, else empty. Nothing may be pushed after it."""
        return self._strategy.finish()


class _Strategy(Protocol):
    def push(self, token_id: int) -> str: ...
    def finish(self) -> str: ...


class _Bytes:
    """For tokenizers whose tokens are bytes in a row: an incremental UTF-8 decoder holds the unfinished character."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._pieces = tokenizer.pieces
        self._skip = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = self._pieces.strip

    def push(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        return self._show(self._decoder.decode(self._pieces.bytes_of(token_id)))

    def finish(self) -> str:
        return self._show(self._decoder.decode(b"", final=True))

    def _show(self, text: str) -> str:
        """Takes spaces off the start of the output, as long as there are some to take off."""
        if self._strip and text:
            spaces = min(len(text) - len(text.lstrip(" ")), self._strip)
            self._strip = self._strip - spaces if spaces == len(text) else 0
            return text[spaces:]
        return text


class _Window:
    """For any other tokenizer: decode a short window of tokens twice, without and with the new one, and take the
    difference. The window starts at the last token whose text has been shown, since joining looks one token back."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._skip_special_tokens = skip_special_tokens
        self._shown: list[int] = []
        self._waiting: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._skip or not self._tokenizer.token_bytes(token_id):
            return ""  # an unknown id stands for nothing, and must not take a known one's place in the window
        self._waiting.append(token_id)
        delta = self._delta()
        if delta.endswith("\N{REPLACEMENT CHARACTER}") and len(self._waiting) < _LONGEST_WAIT:
            return ""
        self._shown, self._waiting = self._waiting, []
        return delta

    def finish(self) -> str:
        delta = self._delta() if self._waiting else ""
        self._waiting = []
        return delta

    def _delta(self) -> str:
        before = self._tokenizer.decode(self._shown, self._skip_special_tokens)
        return self._tokenizer.decode(self._shown + self._waiting, self._skip_special_tokens)[len(before) :]
