"""The arithmetic and the memory traffic that a step implies, counted from its plan. No torch."""

from __future__ import annotations

from workbench.model.config import ModelConfig
from workbench.plan import StepPlan


class StepCost:
    """Counts for one model and the bytes that one weight and one KV number take."""

    def __init__(self, config: ModelConfig, weight_bytes: int, kv_bytes_per_token: int) -> None:
        """``weight_bytes``: of all weights that a step reads; ``kv_bytes_per_token``: over all layers."""
        self.config = config
        self.weight_bytes = weight_bytes
        self.kv_bytes_per_token = kv_bytes_per_token
        self.head_flops = 2 * config.hidden_size * config.vocab_size
        self.token_flops = config.flops_per_token(0) - self.head_flops
        self.windows = [config.window(layer) for layer in range(config.num_layers)]
        self.seen_flops = 4 * config.num_heads * config.head_dim

    def of(self, plan: StepPlan) -> tuple[int, int]:
        """(FLOPs, bytes) of a step.

        FLOPs: 2 for each weight a token meets, 4 · heads · head_dim for each token it sees in each layer; the head only
        for sampled tokens. Bytes: every weight once, each request's visible keys and values once, new ones written.
        """
        flops = 0
        kv_tokens = 0.0
        layers = len(self.windows)
        for window in dict.fromkeys(self.windows):
            alike = self.windows.count(window)
            for item in plan.scheduled:
                end = item.start + item.num_tokens
                flops += alike * self.seen_flops * (_seen(end, window) - _seen(item.start, window))
                read = end if window is None else min(end, window + item.num_tokens - 1)
                kv_tokens += (read + item.num_tokens) * alike / layers
        sampled = sum(item.samples for item in plan.scheduled)
        flops += plan.num_tokens * self.token_flops + sampled * self.head_flops
        return flops, self.weight_bytes + round(kv_tokens * self.kv_bytes_per_token)


def _seen(length: int, window: int | None) -> int:
    """Tokens seen by the first ``length`` tokens of a request, all together: 1 + 2 + … , each at most ``window``."""
    ramp = length if window is None else min(length, window)
    return ramp * (ramp + 1) // 2 + (0 if window is None else (length - ramp) * window)
