"""Texts to calibrate and to evaluate with: files, or pages of Python's own language reference, which lie on every
machine (``pydoc_data.topics``). Another Python has other pages, so results carry a text's hash."""

from __future__ import annotations

from pathlib import Path

from workbench.errors import UsageError, WorkbenchError
from workbench.text.tokenizer import Tokenizer

LENGTH = 256
"""Tokens of a text to calibrate with."""


def calibration_text(file: str | None = None) -> str:
    """The text of a file, or every second page. The others are `evaluation_text`: who calibrates with the text that is
    then scored flatters the result."""
    return _pages(0) if file is None else _read(file)


def evaluation_text(file: str | None = None) -> str:
    """The text of a file, or the pages that `calibration_text` leaves, without the paragraphs that stand there too:
    pages quote each other, and some are the same under two names."""
    if file is not None:
        return _read(file)
    seen = set(_pages(0).split("\n\n"))
    return "\n\n".join(paragraph for paragraph in _pages(1).split("\n\n") if paragraph not in seen)


def calibration_texts(tokenizer: Tokenizer, text: str, num_tokens: int, length: int = LENGTH) -> list[list[int]]:
    """Pieces of ``length`` tokens, spread evenly over the text, ``num_tokens`` or a little more in all.

    Raises UsageError if the text is too short.
    """
    ids = tokenizer.encode(text)
    if num_tokens < 1:
        raise UsageError(f"{num_tokens} calibration tokens: give at least 1")
    if len(ids) < num_tokens:
        raise UsageError(
            f"the calibration text has {len(ids)} tokens and {num_tokens} were asked for: give a longer one"
        )
    pieces = -(-num_tokens // length)
    most = max(len(ids) - length, 0)
    starts = [round(i * most / max(pieces - 1, 1)) for i in range(pieces)]
    return [ids[start : start + length] for start in starts]


def _pages(first: int) -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)[first::2])


def _read(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkbenchError(f"the text {file} cannot be read: {error}") from None
