"""StepCost against counting one token, one layer and one visible token at a time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from workbench.attention.latent_shape import LatentAttention
from workbench.model.architecture import Experts
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


MLA = LatentAttention(kv_lora_rank=12, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=5)


def mixed_config() -> ModelConfig:
    base = ModelConfig.from_dict(shipped_config("smollm2-135m"))
    experts = Experts(8, 2, intermediate_size=24, sparse_layers=(False, True, True))
    return replace(
        base, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=10, latent=MLA, experts=experts,
        sliding_layers=(False,) * 3,
    )  # fmt: skip


def latent_flops(start: int, count: int, expanded: bool) -> int:
    """Of one head: score by score and sum by sum, and what is rebuilt of earlier tokens."""
    flops = 0
    for position in range(start, start + count):
        for _ in range(position + 1):
            flops += 2 * (6 + 4) + 2 * 5 if expanded else 2 * (12 + 4) + 2 * 12
    for _ in range(start if expanded else 0):
        flops += 2 * 12 * (6 + 5)
    return flops


@pytest.mark.parametrize("seed", range(8))
def test_costs_of_latent_attention_equal_counting(seed: int) -> None:
    """The cheaper way of each request; one latent read for each token there is, one written for each that is new."""
    config, plan = mixed_config(), random_plan(seed)
    token = config.kv_bytes_per_token("float32")
    assert token == 3 * (12 + 4) * 4
    flops, moved = StepCost(config, 0, token).of(plan)
    wanted = written = 0
    for item in plan.scheduled:
        ways = {way: latent_flops(item.start, item.num_tokens, way) for way in (True, False)}
        assert MLA.head_flops(item.start, item.num_tokens) == (ways[False], ways[True])
        assert MLA.expands(item.start, item.num_tokens) == (ways[True] < ways[False])
        wanted += 3 * 4 * min(ways.values())
        wanted += item.num_tokens * (config.flops_per_token(0) - 2 * config.hidden_size * config.vocab_size)
        wanted += 2 * config.hidden_size * config.vocab_size * item.samples
        written += token * (item.start + 2 * item.num_tokens)
    assert (flops, moved) == (wanted, written)


def test_a_prompt_expanded_costs_what_transformers_does() -> None:
    """`flops_per_token` is counted against a forward pass; a whole prompt sums it up over its tokens."""
    config = mixed_config()
    whole = StepPlan([Scheduled(None, 0, 9, "prefill", True)])  # type: ignore[arg-type]
    head = 2 * config.hidden_size * config.vocab_size
    assert StepCost(config, 0, 0).of(whole)[0] == sum(config.flops_per_token(n) - head for n in range(1, 10)) + head


def test_a_step_reads_the_experts_its_tokens_would_meet() -> None:
    """2 of 8 for one token; all but a few for many."""
    cost = StepCost(mixed_config(), 10_000, 0, expert_bytes=8000)

    def read(*counts: int) -> int:
        return cost.of(StepPlan([Scheduled(None, 0, n, "decode", True) for n in counts]))[1]  # type: ignore[arg-type]

    assert read(1) == 2000 + 2000
    assert read(2) == read(1, 1) == 2000 + 8000 * (1 - 0.75**2)
    assert 9_990 < read(30) <= 10_000
