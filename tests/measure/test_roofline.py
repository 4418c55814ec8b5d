"""Counts of a step against a step that is watched operator by operator; then predictions, ridge and plot."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kernels.cpu import build
from tests.model.bare_runner import open_runner, request
from workbench.errors import UsageError
from workbench.measure.hardware import Hardware
from workbench.measure.roofline import Share, Work, plot, predict, ridge, step_work, work_of
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config
from workbench.model.cost import StepCost
from workbench.model.runner import ModelRunner
from workbench.plan import Scheduled, StepPlan

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def plain_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our own kernels are calls that no counter of torch looks into."""
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", "none")
    build._library.cache_clear()
    yield
    build._library.cache_clear()


CPU = torch.device("cpu")
DEFAULT = ModelConfig.from_dict(shipped_config("smollm2-135m"))
TIED = replace(DEFAULT, num_layers=2, vocab_size=300, hidden_size=72, head_dim=8, intermediate_size=112,
               sliding_layers=(False, False))  # fmt: skip
UNTIED = replace(TIED, tie_word_embeddings=False, qkv_bias=True, o_bias=True, mlp_bias=True, qk_norm="head")
WINDOWED = replace(TIED, sliding_window=8, sliding_layers=(True, True))

PREFILL = [Share(0, 20), Share(0, 9)]
DECODE = [Share(19, 1), Share(19, 1), Share(19, 1)]
MIXED = [Share(12, 8, samples=False), Share(25, 1)]
HEADLESS = [Share(4, 8, samples=False)]


class Traffic(TorchDispatchMode):
    """Watches every operator: which weights it reads, what goes through matrix products, what leaves and enters KV."""

    def __init__(self, runner: ModelRunner) -> None:
        super().__init__()
        decoder = runner.decoder
        linears, norms = [], []
        for layer in decoder.layers:
            attention, mlp = layer.attention, layer.mlp
            linears += [attention.qkv, attention.o, mlp.gate_up, mlp.down]
            norms += [layer.attn_norm, layer.mlp_norm, attention.q_norm, attention.k_norm]
        weights = [decoder.embedding.data, decoder.norm, *norms]
        weights += [tensor for one in (*linears, decoder.lm_head) for tensor in (one.parts[0].data, one.bias)]
        self.weights = {_place(w): w.nbytes for w in weights if w is not None}
        self.cache = _place(runner.cache.storage)
        self.read: set[int] = set()
        self.activation_bytes = self.kv_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        packet = func.overloadpacket
        if packet is aten.embedding:
            self.activation_bytes += 2 * out.nbytes
        elif packet in (aten.index, aten.index_select) and _place(args[0]) == self.cache:
            self.kv_bytes += out.nbytes
        elif packet in (aten.index_copy_, aten.index_put_) and _place(args[0]) == self.cache:
            self.kv_bytes += tensors[-1].nbytes
        elif not (isinstance(out, torch.Tensor) and any(_place(out) == _place(one) for one in tensors)):
            self.read |= {_place(one) for one in tensors} & set(self.weights)  # a view reads nothing
        if packet in (aten.mm, aten.addmm):
            self.activation_bytes += args[-2].nbytes + out.nbytes
        return out

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights[place] for place in self.read)


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def plan_of(shares: list[Share]) -> StepPlan:
    scheduled = []
    for number, (start, count, samples) in enumerate(shares):
        scheduled.append(Scheduled(request(start + count, 0, first_block=10 * number), start, count, "any", samples))
    return StepPlan(scheduled)


def watched(config: ModelConfig, backend: str, shares: list[Share]) -> tuple[Traffic, FlopCounterMode]:
    """bfloat16, because float32 weights on a CPU are packed into a form that no counter can look into."""
    runner = open_runner(config, backend, CPU, torch.bfloat16)
    plan = plan_of(shares)
    batch = runner.prepare(plan)
    traffic, flops = Traffic(runner), FlopCounterMode(display=False)
    with torch.no_grad(), flops, traffic:
        runner.forward(plan, batch)
    return traffic, flops


@pytest.mark.parametrize("backend", ["torch_native", "sdpa"])
@pytest.mark.parametrize("config", [TIED, UNTIED, WINDOWED], ids=["tied", "untied", "windowed"])
@pytest.mark.parametrize("shares", [PREFILL, DECODE, MIXED, HEADLESS], ids=["prefill", "decode", "mixed", "headless"])
def test_bytes_are_those_that_a_step_moves(backend: str, config: ModelConfig, shares: list[Share]) -> None:
    work = work_of(config, shares, "bfloat16")
    traffic, _ = watched(config, backend, shares)
    assert work.weight_bytes == traffic.weight_bytes
    assert work.activation_bytes == traffic.activation_bytes
    if config is not WINDOWED or backend == "sdpa":  # the plain gather reads what it then masks
        assert work.kv_bytes == traffic.kv_bytes
    assert work.bytes == work.weight_bytes + work.kv_bytes + work.activation_bytes
    assert work.intensity == work.flops / work.bytes


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("shares", [PREFILL, DECODE, MIXED, HEADLESS], ids=["prefill", "decode", "mixed", "headless"])
def test_flops_are_those_that_torch_counts(config: ModelConfig, shares: list[Share]) -> None:
    counts = watched(config, "torch_native", shares)[1].get_flop_counts()["Global"]
    pair = 4 * config.num_heads * config.head_dim * config.num_layers
    # The plain attention multiplies what it then masks, so there torch counts whole rectangles.
    rectangles = pair * sum(count * (start + count) for start, count, _ in shares)
    visible = pair * sum(start + i + 1 for start, count, _ in shares for i in range(count))
    assert sum(counts.values()) - rectangles + visible == work_of(config, shares, "bfloat16").flops
    if shares is DECODE:
        assert rectangles == visible


def test_a_step_of_requests_alike() -> None:
    assert step_work(TIED, num_tokens=20, context=20, dtype="float32") == work_of(TIED, [Share(0, 20)], "float32")
    batch = step_work(TIED, num_tokens=1, context=20, num_requests=3, dtype="float32")
    assert batch == work_of(TIED, DECODE, "float32")
    for wrong in ({"num_tokens": 0}, {"num_requests": 0}, {"context": 4}):
        with pytest.raises(UsageError, match="context counts the new tokens too"):
            step_work(TIED, **{"num_tokens": 5, "context": 9, "dtype": "float32", **wrong})


def test_a_trace_reports_the_same_counts() -> None:
    """Of the default model, whose head is tied: there no parameter is left unread when something is sampled."""
    weight_bytes, kv_bytes = DEFAULT.weight_bytes("float32"), DEFAULT.kv_bytes_per_token("float32")
    cost = StepCost(DEFAULT, weight_bytes, kv_bytes, head_bytes=4 * DEFAULT.vocab_size * DEFAULT.hidden_size)
    for shares in (DECODE, [Share(0, 7, samples=False)]):
        work = work_of(DEFAULT, shares, "float32")
        assert cost.of(plan_of(shares)) == (work.flops, work.weight_bytes + work.kv_bytes)


def test_dtypes_of_weights_and_of_keys_and_values_are_told_apart() -> None:
    wide, narrow = (work_of(TIED, DECODE, dtype) for dtype in ("bfloat16", "int4"))
    assert wide.weight_bytes == 4 * narrow.weight_bytes
    assert (wide.kv_bytes, wide.activation_bytes) == (narrow.kv_bytes, narrow.activation_bytes), "never under 16 bits"
    assert work_of(TIED, DECODE, "bfloat16", "int8") == replace(wide, kv_bytes=wide.kv_bytes // 2)
    assert work_of(TIED, DECODE, 32).kv_bytes == 2 * wide.kv_bytes
    with pytest.raises(UsageError, match="'float3' is not known"):
        work_of(TIED, DECODE, "float3")


def test_a_model_whose_reads_depend_on_its_tokens_is_refused() -> None:
    hf = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "vocab_size": 100, "max_position_embeddings": 64}  # fmt: skip
    with pytest.raises(UsageError, match="mixture of 8 experts"):
        work_of(ModelConfig.from_dict(hf), DECODE, "bfloat16")


# -- time -------------------------------------------------------------------------------------------------------------

MACHINE = Hardware(
    "cpu", "a machine", "AVX2", 2**34, None, 20e9, {"float32": 100e9, "bfloat16": 200e9}, 2, "2026-01-01T00:00:00", {}
)


def test_a_step_lasts_as_long_as_its_slower_half() -> None:
    memory = predict(Work(50 * 10**9, 30 * 10**9, 8 * 10**9, 2 * 10**9), MACHINE, "float32")
    assert (memory.seconds, memory.bound) == (2.0, "memory")
    assert (memory.compute_seconds, memory.memory_seconds) == (0.5, 2.0)
    compute = predict(Work(500 * 10**9, 20 * 10**9, 0, 0), MACHINE, "torch.float32")
    assert (compute.seconds, compute.bound) == (5.0, "compute")
    assert predict(Work(500 * 10**9, 20 * 10**9, 0, 0), MACHINE, "bfloat16").seconds == 2.5
    with pytest.raises(UsageError, match=r"no rate of 'int4'.*there are float32, bfloat16"):
        predict(Work(1, 1, 1, 1), MACHINE, "int4")


def test_at_the_ridge_both_halves_take_equally_long() -> None:
    assert ridge(MACHINE, "float32") == 5.0
    at = predict(Work(5 * 10**9, 10**9, 0, 0), MACHINE, "float32")
    assert at.compute_seconds == at.memory_seconds == 0.05
    assert predict(Work(5 * 10**9 - 100, 10**9, 0, 0), MACHINE, "float32").bound == "memory"
    assert predict(Work(5 * 10**9 + 100, 10**9, 0, 0), MACHINE, "float32").bound == "compute"


def test_decode_waits_for_memory_and_a_batch_or_a_prompt_for_arithmetic() -> None:
    def bound(num_tokens: int, context: int, num_requests: int = 1) -> str:
        work = step_work(DEFAULT, num_tokens=num_tokens, context=context, num_requests=num_requests, dtype="float32")
        return predict(work, MACHINE, "float32").bound

    assert [bound(1, 100, batch) for batch in (1, 4, 64)] == ["memory", "memory", "compute"]
    assert bound(512, 512) == "compute"


# -- plot -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_the_plot_reads_on_any_ground_and_without_colour() -> None:
    from matplotlib import pyplot

    with pyplot.style.context("dark_background"):  # the reader's own style must not make ink and ground alike
        figure = plot(MACHINE, "float32", {"decode": (0.5, 8e9), "prefill": (60.0, 80e9)})
        figure.savefig(io.BytesIO(), format="png")
        plot(MACHINE, "bfloat16")  # without points: the roof alone
    assert pyplot.get_fignums() == [], "a notebook would show it twice"
    axes = figure.axes[0]
    assert figure.get_facecolor() == (1, 1, 1, 1) and axes.get_facecolor() == (1, 1, 1, 1)
    assert {axes.xaxis.label.get_color(), axes.title.get_color()} == {"black"}
    roof, _, *points = axes.get_lines()
    x, y = roof.get_data()
    assert list(y[1:]) == [100.0, 100.0] and x[1] == 5.0 and y[0] == pytest.approx(x[0] * 20)
    assert [(p.get_xdata()[0], p.get_ydata()[0]) for p in points] == [(0.5, 8.0), (60.0, 80.0)]
    assert len({p.get_marker() for p in points}) == 2
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["decode", "prefill"]
    assert {text.get_color() for text in legend.get_texts()} == {"black"}
    low, high = axes.get_xlim()
    assert low < 0.5 and high > 60


@pytest.mark.parametrize("point", [(0.0, 1e9), (1.0, -1.0), (float("inf"), 1.0), (float("nan"), 1.0)])
def test_a_point_without_a_place_is_refused(point: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="'it' lies at"):
        plot(MACHINE, "float32", {"it": point})
