"""Request: one prompt on its way through the engine. Its lengths are derived, so they cannot disagree."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from workbench.plan import Logprobs
from workbench.sampling_params import SamplingParams


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    HELD = "held"
    """The answer is complete but is returned with the others of its batch."""
    FINISHED = "finished"


class TextSink(Protocol):
    """The text of an answer as it grows, as far as the engine must know it: to end at a stop string."""

    def push(self, token_id: int, may_stop: bool) -> bool:
        """Adds a token's text; True when a stop string is complete with it."""

    def finish(self) -> None:
        """The answer has ended otherwise: what was held back is text."""


class Request:
    """A request has ``num_tokens`` known tokens, of which ``num_computed_tokens`` have their KV in the cache.

    Everything the engine does is to let the second number catch up with the first; when it has, the next token is
    sampled and the first grows by one.
    """

    __slots__ = (
"arrival_time", "block_table", "cache_salt", "end_reason", "finish_reason", "finish_time", "first_scheduled_time",
        "first_token_time", "group", "last_token_time", "logprobs", "max_num_tokens", "num_cached_tokens",
        "num_computed_tokens", "num_displaced", "num_preemptions", "num_prompt_tokens", "params", "priority",
        "prompt_logprobs", "rank", "recompute_until", "request_id", "seed", "status", "stop_token_ids", "tenant",
        "text", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        max_num_tokens: int,
        seed: int = 0,
        eos_token_ids: Sequence[int] = (),
        arrival_time: float = 0.0,
        tenant: str | None = None,
        priority: int = 0,
        text: TextSink | None = None,
        group: list[Request] | None = None,
        cache_salt: str = "",
    ) -> None:
        """``group``: the answers to the same prompt (``n``), this one among them; it adds itself."""
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.params = params
        self.max_num_tokens = max_num_tokens
        """Prompt and output end at this many tokens."""
        self.seed = seed
        eos = () if params.ignore_eos else eos_token_ids
        self.stop_token_ids = frozenset(eos) | frozenset(params.stop_token_ids)
        self.tenant = tenant
        self.priority = priority
        self.text = text
        self.cache_salt = cache_salt
        """Cached blocks are shared only with requests of the same salt."""
        self.group = [] if group is None else group
        self.group.append(self)
        self.logprobs: list[Logprobs] = []
        self.prompt_logprobs: list[Logprobs] = []
        """Of the prompt's tokens from the second on: nothing comes before the first."""
        self.status = Status.WAITING
        self.block_table: list[int] = []
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        """Tokens that were cached when the request was first admitted."""
        self.recompute_until = 0
        """Tokens before this index had been computed once when a preemption dropped them."""
        self.rank: tuple[float, int] = (0.0, 0)
        """The smaller goes first; given by the scheduler."""
        self.num_preemptions = 0
        self.num_displaced = 0
        """Those of its preemptions that made room for a request of better priority."""
        self.end_reason: str | None = None
        """Why the answer is complete: ``stop`` or ``length``. In a batch it may wait for the others to be returned."""
        self.finish_reason: str | None = None
        self.arrival_time = arrival_time
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.last_token_time: float | None = None
        self.finish_time: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_prompt_logprobs(self) -> int:
        return len(self.prompt_logprobs)

    def push_text(self, token_id: int) -> bool:
        """Tells the text of the token that is about to be appended; True when a stop string ends the request with it.

        A stop token is not part of the text.
        """
        if self.text is None:
            return False
        enough = self.num_output_tokens + 1 >= self.params.min_tokens
        if enough and token_id in self.stop_token_ids:
            return False
        return self.text.push(token_id, enough)

    def append(self, token_id: int, text_stops: bool = False) -> str | None:
        """Adds a sampled token and returns why the request ends with it, if it does: ``stop`` or ``length``."""
        self.token_ids.append(token_id)
        if text_stops:
            return "stop"
        if token_id in self.stop_token_ids and self.num_output_tokens >= self.params.min_tokens:
            return "stop"
        if len(self.token_ids) >= self.max_num_tokens:
            return "length"
        return None

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, {self.num_computed_tokens} of {self.num_tokens} tokens "
            f"computed, {self.num_output_tokens} of them output)"
        )
