"""TextStream: the text of one answer as it grows, and the stop strings that end it.

Text that may turn out to be the beginning of a stop string is held back until the next token decides, so that what has
been shown never has to be taken back. A stop string may span tokens, begin in one and end in the next.
"""

from __future__ import annotations

from workbench.sampling_params import SamplingParams
from workbench.text.detokenizer import Detokenizer
from workbench.text.tokenizer import Tokenizer


class TextStream:
    """Text of one answer, token by token. ``text`` is what is certain so far, in full; `take` what is new of it."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens)
        self._stops = params.stop
        self._include_stop = params.include_stop_str_in_output
        self._parts: list[str] = []
        self._held = ""
        self._taken = 0

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def push(self, token_id: int, may_stop: bool = True) -> bool:
        """Adds a token's text. True when a stop string is complete with it; ``may_stop``: ``min_tokens`` are out."""
        self._held += self._detokenizer.push(token_id)
        return self._settle(may_stop)

    def finish(self) -> None:
        """Adds what the detokenizer and the stop strings held back: the answer has ended otherwise."""
        self._release(self._held + self._detokenizer.finish())
        self._held = ""

    def take(self) -> str:
        """The certain text that no earlier call returned."""
        new, self._taken = "".join(self._parts[self._taken :]), len(self._parts)
        return new

    def _settle(self, may_stop: bool) -> bool:
        """Releases what cannot belong to a stop string any more."""
        if may_stop:
            found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
            if found:
                # The one that begins first; of two that begin together the shorter, which was complete first.
                at, stop = min(found, key=lambda hit: (hit[0], len(hit[1])))
                self._release(self._held[: at + len(stop) * self._include_stop])
                self._held = ""
                return True
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        self._release(self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]
        return False

    def _release(self, text: str) -> None:
        if text:
            self._parts.append(text)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop`` without completing it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
