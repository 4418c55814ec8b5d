"""The arithmetic and the memory traffic that a step implies, counted from its plan. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from workbench.errors import UsageError
from workbench.model.config import ModelConfig
from workbench.plan import StepPlan


class Chunk(Protocol):
    """What counting asks of a request's part of a step; `workbench.plan.Scheduled` has it."""

    @property
    def start(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def samples(self) -> bool: ...


class Share(NamedTuple):
    """A request's part of a step without the request: its tokens ``start … start + num_tokens`` are computed."""

    start: int
    num_tokens: int
    samples: bool = True


class StepCost:
    """Counts for one model and the bytes that one weight and one KV number take."""

    def __init__(
        self,
        config: ModelConfig,
        weight_bytes: int,
        kv_bytes_per_token: int,
        head_bytes: int = 0,
        expert_bytes: int = 0,
    ) -> None:
        """``weight_bytes``: of all weights; ``head_bytes``: those of them that only a step reads which samples;
        ``expert_bytes``: those of all experts; ``kv_bytes_per_token``: over all layers."""
        self.config = config
        self.weight_bytes = weight_bytes
        self.head_bytes = head_bytes
        self.expert_bytes = expert_bytes
        self.kv_bytes_per_token = kv_bytes_per_token
        self.head_flops = 2 * config.hidden_size * config.vocab_size
        self.token_flops = config.flops_per_token(0) - self.head_flops
        self.windows = [config.window(layer) for layer in range(config.num_layers)]
        self.layers = [(window, self.windows.count(window)) for window in dict.fromkeys(self.windows)]
        """Each window and how many layers have it."""
        self.seen_flops = (config.flops_per_token(1) - config.flops_per_token(0)) // config.num_layers

    def of(self, plan: StepPlan) -> tuple[int, int]:
        """(FLOPs, bytes) of a step: `flops`, and the weights once with `kv_bytes`. No sampled token, no head.

        Which experts a step reads its tokens decide; counted is what would be read on average if each chose evenly.
        """
        unread = 0 if any(item.samples for item in plan.scheduled) else self.head_bytes
        unread += round(self.expert_bytes * self._unmet(sum(item.num_tokens for item in plan.scheduled)))
        return self.flops(plan.scheduled), self.weight_bytes - unread + self.kv_bytes(plan.scheduled)

    def spared_bytes(self, tokens_spared: int) -> int:
        """Keys and values of `AttentionBatch.tokens_spared`, which `of` counts and cascade does not read again."""
        return tokens_spared * self.windows.count(None) * self.kv_bytes_per_token // self.config.num_layers

    def _unmet(self, num_tokens: int) -> float:
        """The share of experts that none of so many tokens goes to."""
        experts = self.config.experts
        return 0.0 if experts is None else (1 - experts.experts_per_token / experts.num_experts) ** num_tokens

    def flops(self, chunks: Sequence[Chunk]) -> int:
        """2 for each weight a token meets, 4 · heads · head_dim for each token it sees in each layer; the head only
        for sampled tokens. Latent attention: the cheaper of its two ways (`LatentAttention.head_flops`)."""
        flops = 0
        latent = self.config.latent
        if latent is not None:
            heads = self.config.num_layers * self.config.num_heads
            flops = heads * sum(min(latent.head_flops(chunk.start, chunk.num_tokens)) for chunk in chunks)
            return flops + self._linear_flops(chunks)
        for window, alike in self.layers:
            if window is None:  # as the general case, in one go: a simulated step is counted faster than it is planned
                twice = sum([chunk.num_tokens * (2 * chunk.start + chunk.num_tokens + 1) for chunk in chunks])
                flops += alike * self.seen_flops * (twice // 2)
                continue
            for chunk in chunks:
                seen = _seen(chunk.start + chunk.num_tokens, window) - _seen(chunk.start, window)
                flops += alike * self.seen_flops * seen
        return flops + self._linear_flops(chunks)

    def _linear_flops(self, chunks: Sequence[Chunk]) -> int:
        """Of the products with weights."""
        sampled = sum(chunk.samples for chunk in chunks)
        return sum(chunk.num_tokens for chunk in chunks) * self.token_flops + sampled * self.head_flops

    def kv_bytes(self, chunks: Sequence[Chunk]) -> int:
        """Each request's visible keys and values read once, its new ones written."""
        tokens = 0
        for window, alike in self.layers:
            if window is None:
                tokens += alike * sum([chunk.start + 2 * chunk.num_tokens for chunk in chunks])
                continue
            for chunk in chunks:
                read = min(chunk.start + chunk.num_tokens, window + chunk.num_tokens - 1)
                tokens += (read + chunk.num_tokens) * alike
        return round(tokens * self.kv_bytes_per_token / self.config.num_layers)


def weights_read(config: ModelConfig, samples: bool) -> int:
    """Parameters that a step reads: every weight once, however many tokens share it.

    Of the embedding table only the rows of its tokens are read, which counts as activations. The head is read in full
    where any token is sampled, tied to the embedding or not. Raises UsageError for a mixture of experts: which of them
    a step reads depends on its tokens.
    """
    _require_dense(config)
    parts = config.parameters()
    return parts.attention + parts.mlp + parts.norm + (config.vocab_size * config.hidden_size if samples else 0)


def activations_moved(config: ModelConfig, num_tokens: int, num_sampled: int) -> int:
    """Numbers that the embedding and the matrix products of a step read as input and write as output.

    The embedding reads a row and writes it. What stays between two products (norms, rotation, the scores of attention)
    is taken to stay in caches or registers. Raises UsageError for models with experts or latent attention.
    """
    _require_dense(config)
    if config.latent is not None:
        raise UsageError(f"{config.architecture}: activations of latent attention are not counted yet; choose another")
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = (hidden + heads + 2 * kv_heads) + (heads + hidden)
    mlp = (hidden + (2 if config.gated_mlp else 1) * inner) + (inner + hidden)
    token = 2 * hidden + config.num_layers * (attention + mlp)
    return num_tokens * token + num_sampled * (hidden + config.vocab_size)


def _require_dense(config: ModelConfig) -> None:
    if config.experts is not None:
        raise UsageError(
            f"{config.architecture} is a mixture of {config.experts.num_experts} experts: which weights a step reads "
            "depends on its tokens, so they are not counted; choose a dense model"
        )


def _seen(length: int, window: int) -> int:
    """Tokens seen by the first ``length`` tokens of a request, all together: 1 + 2 + … , each at most ``window``."""
    ramp = min(length, window)
    return ramp * (ramp + 1) // 2 + (length - ramp) * window
