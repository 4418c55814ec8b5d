"""The contract between the engine, which decides, and a runner, which does.

A `StepPlan` says which requests compute how many tokens in one step; a `Runner` turns it into sampled token ids. The
engine knows nothing of tensors, a runner decides nothing, and neither imports the other: both import this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from workbench.sampling_params import SamplingParams


class RequestView(Protocol):
    """What a runner may read of a request."""

    @property
    def request_id(self) -> str: ...
    @property
    def token_ids(self) -> list[int]:
        """Prompt and output so far."""

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def block_table(self) -> list[int]:
        """Block ids in order: token i lies in block ``block_table[i // block_size]``."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def seed(self) -> int: ...
    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Tokens that end the request, the end-of-sequence tokens among them."""

    @property
    def num_prompt_logprobs(self) -> int:
        """Prompt tokens whose log probabilities are known already (``prompt_logprobs``)."""


class PoolView(Protocol):
    """What a runner may read of the pool whose block ids stand in a plan."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    def lost(self) -> None:
        """Another pool has taken the cache over: nothing is in this one's blocks any more."""


class Scheduled(NamedTuple):
    """One request's share of a step: its tokens ``start … start + num_tokens`` are computed."""

    request: RequestView
    start: int
    num_tokens: int
    kind: str
    """``prefill``, ``decode`` (the one newest token) or ``recompute`` (computed once, dropped by a preemption)."""
    samples: bool
    """Whether the request has caught up after this step, so that its next token is sampled."""


class Skipped(NamedTuple):
    request_id: str
    reason: str
    """``budget``, ``max_num_seqs``, ``no_blocks``, ``waiting_batch``, ``prefill_first``, ``queue_limit`` or
    ``prefix_wait``."""


class Move(NamedTuple):
    """One KV block, in all layers, copied from one store to another; a store is ``pool`` or ``host``."""

    source: str
    block: int
    target: str
    to: int


class Logprob(NamedTuple):
    """How likely a token was, before penalties, temperature and filters."""

    logprob: float
    """Natural logarithm of its probability."""
    rank: int
    """1 for the likeliest token of the vocabulary."""


Logprobs = dict[int, Logprob]
"""The token that came, and the likeliest ones, by token id."""


@dataclass(slots=True)
class StepPlan:
    """Carried out in this order: moves one after the other, then copies, then what is scheduled."""

    scheduled: list[Scheduled] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """KV blocks of the pool to copy before anything is computed: (from, to)."""
    skipped: list[Skipped] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    pool: PoolView | None = field(default=None, compare=False, repr=False)
    """Whose block ids these are: a cache holds the blocks of one pool at a time. None: nobody shares the cache."""
    continues: bool = field(default=False, compare=False, repr=False)
    """Whether anything that earlier steps left in the pool's blocks is still needed."""
    moves: list[Move] = field(default_factory=list)
    """KV blocks that leave the pool or come back to it. A later move may overwrite what an earlier one has read."""
    held: list[str] = field(default_factory=list)
    """Requests whose answer is complete and whose seat is kept until their batch is done: idle slots."""

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)


class StepResult(NamedTuple):
    token_ids: Sequence[int | None]
    """One entry for each of ``plan.scheduled``: the sampled token, or None where none was sampled."""
    flops: int = 0
    bytes: int = 0
    """Arithmetic and memory traffic that the step implies (weights, KV read and written)."""
    phases: dict[str, float] = {}
    """Seconds of ``prepare``, ``forward`` and ``sample``."""
    logprobs: Sequence[Logprobs | None] = ()
    """One entry for each of ``plan.scheduled``, or none at all: for the sampled token, where the request wants them."""
    prompt_logprobs: Sequence[list[Logprobs]] = ()
    """Likewise for the prompt tokens that follow the computed ones, from ``num_prompt_logprobs`` on."""
    moved_bytes: int = 0
    """Keys and values that the plan's `moves` copied between two stores: apart from ``bytes``, for they pass another
    link and no request of the step reads them."""


class Runner(Protocol):
    def execute(self, plan: StepPlan) -> StepResult:
        """Computes every scheduled token once and samples where a request has caught up."""
