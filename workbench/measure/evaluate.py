"""How well a model predicts a text, and how far it is from another one: perplexity, KL, agreement, SNR of layers.

A text is longer than what a model is shown at a time, so it is scored in windows that begin ``stride`` tokens apart;
each token is scored once, in the first window that holds it, with all of that window before it. Window, stride, BOS and
text decide the figure, so they stand in every row: 5.1 and 5.5 can be the same model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.checks import json_object
from workbench.errors import UsageError, WorkbenchError
from workbench.measure.watched import Watched, noise_of, snr_db
from workbench.model.divergence import kl_divergence

Logits = Callable[[list[int]], Tensor]
"""Token ids to logits after each, ``[tokens, vocab_size]`` float32: ``llm.runner.logits``, through the paged cache."""


@dataclass(frozen=True, slots=True)
class Windows:
    """How a text is cut. Raises UsageError for a window that cannot be scored in."""

    window: int = 512
    """Tokens that the model sees at most, BOS among them."""
    stride: int = 256
    bos: int | None = None
    """The token put in front of each window; None for none."""

    def __post_init__(self) -> None:
        if self.window < 2:
            raise UsageError(f"window={self.window} must be at least 2: one token to see and one to predict")
        if not 1 <= self.stride <= self._held:
            raise UsageError(f"stride={self.stride} must be 1 to {self._held}, or tokens would be left out")

    @property
    def _held(self) -> int:
        return self.window - (self.bos is not None)

    def spans(self, length: int) -> Iterator[tuple[int, int, int]]:
        """Of a text: where a window begins, the first token that is scored in it, and where it ends. The text's first
        token, and that of a window without overlap, can only be predicted from BOS."""
        begin = scored = 0
        while scored < length:
            end = min(begin + self._held, length)
            first = max(scored, begin + (self.bos is None))
            if first < end:
                yield begin, first, end
            scored, begin = end, begin + self.stride


@dataclass(frozen=True, slots=True)
class Scored:
    """Sums over the tokens that were scored in one window."""

    begin: int
    tokens: int
    nats: float
    """−Σ ln p of the tokens that came."""
    kl: float | None = None
    """ΣKL(reference ‖ model)"""
    agreed: int | None = None
    """Tokens for which both hold the same one to be the likeliest."""
    noise: tuple[float, ...] | None = None
    """Of each layer, as `watched.noise_of` has it, where both models are `Watched`."""
    reference_nats: float | None = None
    """−Σ ln p of the tokens that came, by the reference."""


def score(
    ids: Sequence[int],
    windows: Windows,
    model: Logits,
    reference: Logits | None = None,
    kept: Iterable[Scored] = (),
) -> Iterator[Scored]:
    """Scores a text window by window, those in ``kept`` excepted, which come back as they are."""
    done = {one.begin: one for one in kept}
    for begin, first, end in windows.spans(len(ids)):
        if begin in done:
            yield done[begin]
            continue
        shown = ([] if windows.bos is None else [windows.bos]) + list(ids[begin:end])
        before = first - begin - 1 + (windows.bos is not None)  # the row that predicts the first
        rows = slice(before, before + end - first)
        found = model(shown)[rows]
        wanted = torch.tensor(ids[first:end])[:, None]
        nats = _nats(found, wanted)
        if not math.isfinite(nats):
            raise WorkbenchError(f"the model's logits for tokens {begin} to {end} are not finite")
        if reference is None:
            yield Scored(begin, end - first, nats)
            continue
        exact = reference(shown)[rows]
        kl = max(0.0, kl_divergence(exact.numpy(), found.numpy())) * (end - first)
        noise = None
        if isinstance(model, Watched) and isinstance(reference, Watched):
            noise = noise_of(model.hidden, reference.hidden, rows)
        agreed = int((exact.argmax(-1) == found.argmax(-1)).sum())
        yield Scored(begin, end - first, nats, kl, agreed, noise, _nats(exact, wanted))


def _nats(logits: Tensor, wanted: Tensor) -> float:
    """−Σ ln p of the ``wanted`` ids ``[tokens, 1]``."""
    return -float(logits.double().log_softmax(-1).gather(1, wanted).sum())


def summary(parts: Sequence[Scored], windows: Windows, text: str) -> dict[str, Any]:
    """One row: figures a token, and all that they depend on."""
    tokens = sum(part.tokens for part in parts)
    if not tokens:
        raise UsageError("the text has no token that could be scored: give a longer one, or --bos")
    compared = [part for part in parts if part.kl is not None and part.agreed is not None]
    noise = [part.noise for part in parts if part.noise is not None]
    # A record of an earlier version has none of these.
    exact = [part.reference_nats for part in parts if part.reference_nats is not None]
    layers = [snr_db(sum(of_layer), tokens) for of_layer in zip(*noise, strict=True)]
    return {
        "perplexity": math.exp(sum(part.nats for part in parts) / tokens),
        "reference_perplexity": math.exp(sum(exact) / tokens) if len(exact) == len(parts) else None,
        "kl": sum(part.kl or 0.0 for part in compared) / tokens if compared else None,
        "top1_agreement": sum(part.agreed or 0 for part in compared) / tokens if compared else None,
        "layers": [{"name": f"model.layers.{i}", "snr_db": db} for i, db in enumerate(layers)] or None,
        "tokens": tokens,
        "window": windows.window,
        "stride": windows.stride,
        "bos": windows.bos is not None,
        "text_sha256": text_hash(text),
        "unit": "token",
    }


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Record:
    """A file that keeps what was scored, one line a window, so that a stopped run goes on."""

    def __init__(self, file: Path, run: dict[str, Any]) -> None:
        """run: everything that decides the figures. Raises UsageError for a file of another run."""
        self.file, head = file, json.dumps({"evaluation": run}, sort_keys=True)
        self.kept: list[Scored] = []
        if file.exists():
            lines = file.read_text(encoding="utf-8").split("\n")
            if lines[0] != head:
                raise UsageError(f"{file} holds another run ({lines[0][:80]}…): remove it or give another file")
            for line in lines[1:-1]:  # what follows the last newline was cut off while it was written
                told = json_object(line)
                self.kept.append(Scored(**{**told, "noise": told.get("noise") and tuple(told["noise"])}))
            head = "\n".join(lines[:-1])
        file.write_text(head + "\n", encoding="utf-8")

    def add(self, part: Scored) -> None:
        with self.file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(asdict(part)) + "\n")
