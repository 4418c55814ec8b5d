"""What comes back for a prompt: tokens, text, why it ended, and how long it took. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.engine.request import Request
from workbench.plan import Logprobs


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Seconds. None where there is nothing to measure (no token came, or no second token for ``tpot``)."""

    queue: float | None
    """Arrival to the first step that computed a token of it."""
    ttft: float | None
    """Time to first token, from arrival."""
    tpot: float | None
    """Time per output token after the first: (last − first) / (tokens − 1)."""
    e2e: float | None
    """Arrival to end."""

    @classmethod
    def of(cls, request: Request) -> RequestMetrics:
        arrival, end, first = request.arrival_time, request.finish_time, request.first_token_time
        last = request.last_token_time
        steps = request.num_output_tokens - 1
        return cls(
            queue=None if request.first_scheduled_time is None else request.first_scheduled_time - arrival,
            ttft=None if first is None else first - arrival,
            tpot=None if first is None or last is None or steps < 1 else (last - first) / steps,
            e2e=None if end is None else end - arrival,
        )


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of the ``n`` answers to a prompt."""

    index: int
    token_ids: list[int]
    text: str
    finish_reason: str
    """``stop``, ``length`` or ``abort``"""
    logprobs: list[Logprobs] | None = None
    """One entry for each output token, if they were asked for."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request. ``token_ids``, ``text``, ``finish_reason`` and ``logprobs`` are those of the first answer."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    prompt_logprobs: list[Logprobs | None] | None = None
    """One entry for each prompt token, None for the first, if they were asked for."""

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def finish_reason(self) -> str:
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[Logprobs] | None:
        return self.outputs[0].logprobs

    def to_dict(self) -> dict[str, Any]:
        """The object that ``workbench generate --json`` prints; with several answers they are listed in ``outputs``."""
        metrics = self.metrics
        told = {
            "request_id": self.request_id,
            "prompt_token_ids": self.prompt_token_ids,
            "token_ids": self.token_ids,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "num_cached_tokens": self.num_cached_tokens,
            "metrics": {"ttft": metrics.ttft, "tpot": metrics.tpot, "e2e": metrics.e2e, "queue": metrics.queue},
        }
        if len(self.outputs) > 1:
            told["outputs"] = [
                {"index": o.index, "token_ids": o.token_ids, "text": o.text, "finish_reason": o.finish_reason}
                for o in self.outputs
            ]
        return told
