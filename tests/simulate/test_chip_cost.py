"""What a step costs on a chip: by hand on a toy chip, never slower on a better one, refusals by name."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from workbench.engine.clock import VirtualClock
from workbench.errors import UsageError, WorkbenchError
from workbench.machine import cpu_name, num_cpus, total_memory
from workbench.measure.ceilings import SCHEMA_VERSION, Hardware, keep_efficiency, kept_cpu, key_start
from workbench.model.config import ModelConfig
from workbench.plan import Move, Scheduled, StepPlan
from workbench.simulate.chip_cost import ChipCost
from workbench.simulate.chips import CHIPS, Chip, Efficiency, chip_named, this_cpu
from workbench.simulate.models import model_shape
from workbench.simulate.runner import CostModelRunner

TOY = Chip(
    "toy",
    10**9,
    1000.0,
    {"float32": 100_000.0},
    10.0,
    "made up",
    "float32",
    Efficiency(0.5, 0.1, step_seconds=2.0, request_seconds=0.25),
)
SHAPE = ModelConfig.from_dict({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4, "intermediate_size": 8,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "tie_word_embeddings": True,
})  # fmt: skip


class Pool:
    num_blocks, block_size = 8, 4


def plan_of(*shares: tuple[int, int, bool], **more) -> StepPlan:
    items = [Scheduled(None, start, count, "prefill", samples) for start, count, samples in shares]  # type: ignore[arg-type]
    return StepPlan(scheduled=items, **more)


def test_a_step_by_hand() -> None:
    # Weights: a layer has q 4·4, k and v 4·2 each, o 4·4, MLP 3·4·8 = 144, norms 2·4; with the last norm and the tied
    # head: 2 · 152 + 4 + 40 = 348 numbers of 4 bytes.
    # 3 tokens from 0, sampling once: linear FLOPs 3 · 2 · 288 + 2 · 40 = 1808, at C = 50,000/s 0.03616 s.
    # Activations of a token: embedding 8, attention of a layer (4 + 4 + 2·2) + (4 + 4) = 20, MLP (4 + 16) + (8 + 4) =
    # 32, so 8 + 2 · 52 = 112; of a sample 4 + 10. Bytes: 1392 + 4 · (3 · 112 + 14) = 2792, at B = 100/s 27.92 s.
    # Attention: 1 + 2 + 3 pairs, 4 · 2 heads · 2 in 2 layers = 192 FLOPs. KV: 2 · 2 layers · 2 · 4 = 32 bytes a token,
    # 3 read and 3 written: 192 bytes, 1.92 s. And 2 s for the step, 0.25 s for the request.
    price = ChipCost(SHAPE, TOY).price(plan_of((0, 3, True)))
    assert price.seconds == pytest.approx(27.92 + 1.92 + 2.25)
    assert (price.flops, price.bytes) == (1808 + 192, 2792 + 192)
    # A chip that computes slowly waits for the arithmetic of both kinds.
    slow = replace(TOY, flops={"float32": 20.0})
    assert ChipCost(SHAPE, slow).price(plan_of((0, 3, True))).seconds == pytest.approx(180.8 + 19.2 + 2.25)
    # Without a sample the head's 40 numbers are not read.
    assert ChipCost(SHAPE, TOY).price(plan_of((0, 3, False))).bytes == 2792 + 192 - 160 - 56


def test_blocks_that_move_cost_the_link_and_those_that_are_copied_the_memory() -> None:
    # A block holds 4 tokens of 32 bytes: 128 bytes, 12.8 s through the link, 2.56 s to read and write at B.
    moves = [Move("pool", 0, "host", 1)] * 3
    alone = ChipCost(SHAPE, TOY).price(StepPlan(moves=moves, pool=Pool()))
    assert alone.seconds == pytest.approx(2.0 + 3 * 12.8) and alone.flops == 0
    assert (alone.bytes, alone.moved_bytes) == (0, 3 * 128)
    base = ChipCost(SHAPE, TOY).price(plan_of((0, 3, True)))
    copied = ChipCost(SHAPE, TOY).price(plan_of((0, 3, True), copies=[(0, 1)], pool=Pool()))
    assert copied.seconds - base.seconds == pytest.approx(2.56)


@pytest.mark.parametrize("name", CHIPS)
def test_more_of_anything_is_never_slower_and_more_work_never_faster(name: str) -> None:
    draw, shape, chip = Random(name), model_shape("qwen2.5-7b"), CHIPS[name]
    if name in ("l4", "rtx4090"):
        assert ChipCost(shape, chip).memory(0.9).pool > 0
    better = {
        "bandwidth": replace(chip, bandwidth=chip.bandwidth * 1.5),
        "compute": replace(chip, flops={dtype: rate * 1.5 for dtype, rate in chip.flops.items()}),
        "efficiency": chip.with_efficiency(compute=0.9, memory=0.9),
        "overhead": chip.with_efficiency(step_seconds=0.0, request_seconds=0.0),
    }
    for _ in range(60):
        shares = [(draw.randint(0, 9000), draw.choice([1, 1, draw.randint(1, 2048)]), draw.random() < 0.7)
                  for _ in range(draw.randint(1, 60))]  # fmt: skip
        base = ChipCost(shape, chip).price(plan_of(*shares)).seconds
        for what, other in better.items():
            assert ChipCost(shape, other).price(plan_of(*shares)).seconds <= base, what
        assert ChipCost(shape, chip, weight_dtype="int4").price(plan_of(*shares)).seconds <= base
        assert ChipCost(shape, chip, kv_dtype="int8").price(plan_of(*shares)).seconds <= base
        start, count, samples = shares[0]
        for more in ((start + 100, count, samples), (start, count + 10, samples)):
            assert ChipCost(shape, chip).price(plan_of(more, *shares[1:])).seconds >= base
        assert ChipCost(shape, chip).price(plan_of((0, 1, True), *shares)).seconds > base


def test_chips_stand_in_the_order_of_their_data_sheets() -> None:
    plan = plan_of(*[(1000, 1, True)] * 32)
    names = ("l4", "rtx4090", "a100-80", "h100", "h200", "b200")
    seconds = [ChipCost(model_shape("qwen2.5-7b"), CHIPS[name]).price(plan).seconds for name in names]
    assert seconds == sorted(seconds, reverse=True)
    # One token of one request: 14.1 GB at 80 % of 3.35 TB/s, and 1 ms: between 5 and 8 ms.
    assert 0.005 < ChipCost(model_shape("qwen2.5-7b"), CHIPS["h100"]).price(plan_of((100, 1, True))).seconds < 0.008


def test_the_clock_moves_by_the_price_of_the_plan() -> None:
    clock, cost = VirtualClock(), ChipCost(SHAPE, TOY)
    plan = StepPlan(moves=[Move("pool", 0, "host", 1)], pool=Pool())
    result = CostModelRunner(cost, clock).execute(plan)
    assert clock.now() == cost.price(plan).seconds == result.phases["forward"]
    assert result.moved_bytes == 128


def test_the_pool_is_what_the_weights_leave_of_the_chip() -> None:
    memory = ChipCost(model_shape("qwen2.5-7b"), CHIPS["h100"]).memory(0.9)
    weights = model_shape("qwen2.5-7b").weight_bytes("bfloat16")
    assert memory.pool == int(80 * 2**30 * 0.9) - weights and memory.total == 80 * 2**30 - weights
    assert memory.kv_bytes_per_token == 57_344
    narrow = ChipCost(model_shape("qwen2.5-7b"), CHIPS["h100"], weight_dtype="int4", kv_dtype="int8").memory(0.9)
    assert narrow.pool > memory.pool and narrow.kv_bytes_per_token == 28_672
    with pytest.raises(UsageError, match=r"15\.2 GB in bfloat16 .* l4"):
        ChipCost(model_shape("qwen2.5-7b"), CHIPS["l4"]).memory(0.5)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: chip_named("h10"), "did you mean h100.*a100-80, h100, h200, b200, l4, rtx4090, this-cpu"),
        (lambda: model_shape("qwen9"), "'qwen9' is not known.*qwen2.5-7b.*smollm2-135m.*config.json"),
        (lambda: ChipCost(SHAPE, CHIPS["a100-80"], compute_dtype="fp8_e4m3"), "a100-80 does not compute in 'fp8_e4m3'"),
        (lambda: ChipCost(SHAPE, CHIPS["h100"], weight_dtype="int3"), "'int3' is not known"),
        (lambda: CHIPS["h100"].with_efficiency(compute=0.0), "compute efficiency 0.0"),
        (lambda: CHIPS["h100"].with_efficiency(step_seconds=-1.0), "step_seconds=-1.0"),
    ],
)
def test_what_is_not_there_is_refused_by_name(make, told) -> None:
    with pytest.raises(UsageError, match=told):
        make()


def test_this_cpu_is_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    import json
    from dataclasses import asdict

    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    with pytest.raises(WorkbenchError, match="not measured yet"):
        this_cpu()
    start = key_start("cpu", cpu_name(), cpu_name(), num_cpus(), total_memory())
    made = Hardware("cpu", "c", "AVX2", 2**34, None, 2e10, {"float32": 1e11}, 2, "2026-01-01T00:00:00", {})
    entries = {
        f"{start}1 threads": asdict(made),
        f"{start}2 threads": asdict(replace(made, read_bandwidth=3e10, measured_at="2026-02-01T00:00:00")),
        "cpu: another machine": asdict(replace(made, read_bandwidth=9e10, measured_at="2027-01-01T00:00:00")),
        f"{start}damaged": {"device": "cpu"},
    }
    (tmp_path / "hardware.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION, "measured": entries}))
    chip = this_cpu()
    assert (chip.bandwidth, chip.dtype, chip.rate("float32")) == (3e10, "float32", 1e11)
    assert ChipCost(model_shape("smollm2-135m"), chip).memory(0.9).pool <= 2 << 30
    assert chip.efficiency.overlap == 1.0 and "calibrated" not in chip.source
    found = Efficiency(0.9, 0.3, overlap=0.2, step_seconds=0.01, request_seconds=1e-3)
    keep_efficiency(kept_cpu(), asdict(found))
    assert this_cpu() == replace(chip, efficiency=found, source=this_cpu().source) and "calibrated" in this_cpu().source
    assert kept_cpu().read_bandwidth == 3e10
