"""CostModelRunner: stands where the model would. It computes nothing; the clock moves as far as the cost model says.

Scheduler, policies, pool and engine are the real ones, so what they decide here is what they would decide with a model
whose steps took these times. Only the tokens are not a model's: a workload that ignores end-of-sequence tokens, as
benchmarks do, does not depend on them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from workbench.config import MAX_KV_BLOCKS, EngineConfig
from workbench.engine.clock import VirtualClock
from workbench.engine.engine import Engine
from workbench.errors import UsageError
from workbench.model.config import ModelConfig
from workbench.plan import StepPlan, StepResult
from workbench.simulate.cost import Cost, as_cost_model
from workbench.sizing import resolve_max_model_len, resolve_num_host_kv_blocks, resolve_num_kv_blocks

MAX_MODEL_LEN = 8192
"""Where neither a model nor the options say how long a request may be."""


class CostModelRunner:
    """A `Runner` without a model: ``clock`` advances by what ``cost`` says a plan takes."""

    def __init__(self, cost: Cost, clock: VirtualClock) -> None:
        """``cost``: a `CostModel`, or a function from a plan to seconds."""
        self.cost = as_cost_model(cost)
        self.clock = clock

    def execute(self, plan: StepPlan) -> StepResult:
        """Every request that has caught up gets the token 0, or the first that does not end it."""
        price = self.cost.price(plan)
        self.clock.advance(price.seconds)
        tokens: list[int | None] = []
        for item in plan.scheduled:
            token = 0 if item.samples else None
            while token is not None and token in item.request.stop_token_ids:
                token += 1
            tokens.append(token)
        phases = {"forward": price.seconds}
        return StepResult(tokens, price.flops, price.bytes, phases, moved_bytes=price.moved_bytes)


class TrustedTokens(list[int]):
    """Token ids that need no check, because the simulator made them: checking a long prompt costs more than serving it.

    They need not lie in any vocabulary. All that counts is which of them are equal.
    """

    def __init__(self, pieces: Iterable[tuple[int, int]] = ()) -> None:
        """``pieces``: (token id, how many times), one after the other."""
        super().__init__()
        self.packed = array("i")
        """The same tokens side by side: a queue of long prompts is small, and nothing for a collector to look at."""
        for token_id, count in pieces:
            self += [token_id] * count
            self.packed += array("i", [token_id]) * count


class SimulatedEngine(Engine):
    """An `Engine` that takes `TrustedTokens` as they are and keeps them packed."""

    def add_request(self, prompt: str | Sequence[int], *args: Any, **kwargs: Any) -> str:
        request_id = super().add_request(prompt, *args, **kwargs)
        if isinstance(prompt, TrustedTokens):
            group = self.requests[request_id].group
            for request in group:
                request.token_ids = prompt.packed[:]  # type: ignore[assignment]
            if len(group) == 1:
                group.clear()  # Alone it needs no group, and a request that holds itself is not freed when it is done.
        return request_id

    def _token_ids(self, prompt: str | Sequence[int]) -> list[int]:
        return prompt[:] if isinstance(prompt, TrustedTokens) else super()._token_ids(prompt)


def simulated_engine(
    config: EngineConfig, cost: Cost, model_config: ModelConfig | None = None, clock: VirtualClock | None = None
) -> Engine:
    """The real engine with a cost model for its runner, on a virtual clock.

    The context is the model's, the pool as large as the cost model's chip allows. Without a model requests may have
    8192 tokens, and without a chip the pool is so large that nobody has to wait for blocks; ``max_model_len`` and
    ``num_kv_blocks`` say otherwise. Drive it with `workbench.measure.drive.drive`, or add requests and step it.
    """
    model = as_cost_model(cost)
    clock = clock or VirtualClock()
    limit = model_config.max_position_embeddings if model_config else config.max_model_len or MAX_MODEL_LEN
    max_model_len = resolve_max_model_len(config, limit)
    memory = model.memory(config.gpu_memory_utilization)
    if memory is not None:
        blocks = resolve_num_kv_blocks(config, max_model_len, memory.kv_bytes_per_token, memory.pool, memory.total)
        host_blocks = resolve_num_host_kv_blocks(config, blocks, memory.kv_bytes_per_token)
    else:
        for name in ("kv_cache_memory_bytes", "kv_offload_host_gib"):
            if getattr(config, name):
                raise UsageError(
                    f"{name}={getattr(config, name)} needs a cost model that knows the bytes of a block: give the size "
                    "in blocks (num_kv_blocks, num_host_kv_blocks) or a model on a chip"
                )
        blocks = resolve_num_kv_blocks(config, max_model_len, 1, MAX_KV_BLOCKS * config.block_size)
        host_blocks = resolve_num_host_kv_blocks(config, blocks, 1)
    config = config.replace(
        max_model_len=max_model_len,
        num_kv_blocks=blocks,
        kv_cache_memory_bytes=None,
        num_host_kv_blocks=host_blocks,
        kv_offload_host_gib=0.0,
    )
    vocab_size = model_config.vocab_size if model_config else None
    return SimulatedEngine(config, CostModelRunner(model, clock), clock=clock, vocab_size=vocab_size)
