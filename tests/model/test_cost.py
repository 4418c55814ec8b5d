"""StepCost against counting one token, one layer and one visible token at a time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config
from workbench.model.cost import StepCost
from workbench.plan import Scheduled, StepPlan


def config_with(window: int | None, sliding: tuple[bool, ...]) -> ModelConfig:
    base = ModelConfig.from_dict(shipped_config("smollm2-135m"))
    return replace(base, num_layers=len(sliding), sliding_layers=sliding, sliding_window=window)


def linear_flops(config: ModelConfig) -> int:
    """2 for each weight of the matrices that every token meets, over all layers."""
    h, heads, kv, d = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
    attention = h * heads * d + 2 * h * kv * d + heads * d * h
    mlp = 3 * h * config.intermediate_size
    return 2 * config.num_layers * (attention + mlp)


def counted(config: ModelConfig, plan: StepPlan, body_bytes: int, kv_bytes: int, head_bytes: int) -> tuple[int, int]:
    flops, layer_bytes = 0, kv_bytes // config.num_layers
    num_bytes = body_bytes
    for item in plan.scheduled:
        if item.samples:
            num_bytes += head_bytes  # one reading serves all
            break
    for item in plan.scheduled:
        flops += item.num_tokens * linear_flops(config)
        if item.samples:
            flops += 2 * config.hidden_size * config.vocab_size
        for layer in range(config.num_layers):
            window = config.window(layer)
            read: set[int] = set()
            for position in range(item.start, item.start + item.num_tokens):
                seen = [p for p in range(position + 1) if window is None or p > position - window]
                read.update(seen)
                flops += 4 * config.num_heads * config.head_dim * len(seen)
                num_bytes += layer_bytes  # its own key and value are written
            num_bytes += layer_bytes * len(read)
    return flops, num_bytes


def random_plan(seed: int) -> StepPlan:
    draw = Random(seed)
    plan = StepPlan()
    for _ in range(draw.randint(1, 5)):
        start, count = draw.choice([0, draw.randint(0, 60)]), draw.choice([1, draw.randint(1, 40)])
        plan.scheduled.append(Scheduled(None, start, count, "prefill", draw.random() < 0.5))  # type: ignore[arg-type]
    return plan


@pytest.mark.parametrize(
    ("window", "sliding"),
    [
        (None, (False, False, False)),
        (8, (True, True)),
        (8, (False, True, True)),
        (1, (True, False)),
        (1000, (True, True)),
    ],
)
@pytest.mark.parametrize("seed", range(8))
def test_costs_equal_counting(window: int | None, sliding: tuple[bool, ...], seed: int) -> None:
    config = config_with(window, sliding)
    kv_bytes = config.kv_bytes_per_token("float32")
    assert kv_bytes == len(sliding) * 2 * config.num_kv_heads * config.head_dim * 4
    plan = random_plan(seed)
    cost = StepCost(config, 12345, kv_bytes, head_bytes=2345)
    assert cost.of(plan) == counted(config, plan, 10000, kv_bytes, 2345)


def test_a_step_costs_its_weights_once_however_many_share_it() -> None:
    config = ModelConfig.from_dict(shipped_config("smollm2-135m"))
    cost = StepCost(config, 10**9, 0)
    one = Scheduled(None, 5, 1, "decode", True)  # type: ignore[arg-type]
    assert cost.of(StepPlan([one]))[1] == cost.of(StepPlan([one] * 9))[1] == 10**9
    assert cost.of(StepPlan([one] * 9))[0] == 9 * cost.of(StepPlan([one]))[0]


def test_chunks_add_up_to_the_whole() -> None:
    config = config_with(8, (False, True))
    cost = StepCost(config, 0, config.kv_bytes_per_token("float32"))

    def flops(start: int, count: int) -> int:
        return cost.of(StepPlan([Scheduled(None, start, count, "prefill", False)]))[0]  # type: ignore[arg-type]

    assert sum(flops(i, 1) for i in range(30)) == flops(0, 11) + flops(11, 19) == flops(0, 30)
