"""Which bytes each token stands for, read from a tokenizer's decoder.

Two families of decoders put bytes in a row, whatever came before: byte-level BPE (every character of a token spells a
byte) and SentencePiece-like ones (``▁`` is a space, ``<0xE2>`` a byte, perhaps one space taken off a text's start).
Any other decoder joins tokens by rules of its own; its pieces are not `exact`.
Sources: GPT-2's ``bytes_to_unicode``; the decoders of the `tokenizers` library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's spelling of the 256 bytes: printable Latin-1 characters spell themselves, the others take the
    characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class Pieces:
    """The bytes of every token of one tokenizer; worked out when first asked for, then remembered.

    Args:
        backend: whose vocabulary it is.
        kind: ``bytes``, ``metaspace`` or ``other``.
        space: the character that stands for a space (``metaspace``).
        strip: spaces taken off the start of a text (``metaspace``).
    """

    def __init__(self, backend: Backend, kind: str, space: str = "▁", strip: int = 0) -> None:
        self._backend = backend
        self._kind = kind
        self._space = space
        self._alphabet = byte_alphabet() if kind == "bytes" else {}
        self._known: dict[int, bytes] = {}
        self.strip = strip
        added = backend.get_added_tokens_decoder()
        self.special = frozenset(index for index, token in added.items() if token.special)

    @classmethod
    def of(cls, backend: Backend) -> Pieces:
        """Reads the decoder of ``backend``."""
        if backend.decoder is None:
            return cls(backend, "other")
        state = json.loads(backend.decoder.__getstate__())
        steps = state["decoders"] if state["type"] == "Sequence" else [state]
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            return cls(backend, "bytes")
        if kinds == ["Metaspace"]:
            return cls(backend, "metaspace", steps[0]["replacement"], int(steps[0]["prepend_scheme"] != "never"))
        if kinds in (["Replace", "ByteFallback", "Fuse", "Strip"], ["Replace", "ByteFallback", "Fuse"]):
            return cls._llama(backend, steps)
        return cls(backend, "other")

    @classmethod
    def _llama(cls, backend: Backend, steps: list[dict[str, Any]]) -> Pieces:
        space: str | None = steps[0]["pattern"].get("String")
        strips: dict[str, Any] = steps[3] if len(steps) == 4 else {"content": " ", "start": 0, "stop": 0}
        if not space or steps[0]["content"] != " " or strips["content"] != " " or strips["stop"]:
            return cls(backend, "other")
        return cls(backend, "metaspace", space, strips["start"])

    @property
    def exact(self) -> bool:
        """Whether a text is its tokens' bytes in a row."""
        return self._kind != "other"

    def bytes_of(self, token_id: int) -> bytes:
        found = self._known.get(token_id)
        if found is None:
            text = self._backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
            found = self._known[token_id] = b"" if text is None else self._spell(text)
        return found

    def text(self, ids: Iterable[int], skip_special_tokens: bool) -> str:
        """The whole text of ``ids``."""
        skip = self.special if skip_special_tokens else ()
        text = b"".join(self.bytes_of(index) for index in ids if index not in skip).decode("utf-8", "replace")
        spaces = len(text) - len(text.lstrip(" "))
        return text[min(spaces, self.strip) :]

    def _spell(self, text: str) -> bytes:
        if self._kind == "bytes":
            spelled = [self._alphabet.get(character) for character in text]
            # Added tokens may hold characters that spell no byte (a space, say); such a token is plain text.
            known = [byte for byte in spelled if byte is not None]
            return bytes(known) if len(known) == len(spelled) else text.encode()
        if self._kind == "metaspace":
            if match := _BYTE.fullmatch(text):
                return bytes([int(match[1], 16)])
            return text.replace(self._space, " ").encode()
        return text.encode()
