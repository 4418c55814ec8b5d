"""Decode steps as CUDA graphs, without a GPU: `tests/model/fake_graphs.py` stands in for ``torch.cuda``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from kernels.cpu import build
from tests.model import fake_cuda
from tests.model.bare_runner import open_runner
from tests.model.fake_graphs import FakeCuda, Graph, NotPermitted
from tests.model.fake_recorder import FixedShapes
from tests.model.test_captured import assert_same, decodes, eager
from workbench.config import EngineConfig
from workbench.errors import UsageError, WorkbenchError
from workbench.model import cuda_graphs
from workbench.model.captured import CapturedSteps
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config
from workbench.model.cuda_graphs import GraphRecorder, capture_sizes, graph_bytes
from workbench.model.runner import ModelRunner
from workbench.model.step_recorders import captured_steps

CPU = torch.device("cpu")


def model_config() -> ModelConfig:
    """All that a supported decoder may have, and small."""
    return replace(fake_cuda.model_config(), vocab_size=1024, intermediate_size=128)


@pytest.fixture(autouse=True)
def _torchs_operations_only() -> Iterator[None]:
    """Our C++ kernels are no operations of torch, so a graph that notes those down would miss them."""
    without_onednn = patch.object(torch.backends.mkldnn, "is_available", lambda: False)  # its layout hides weights
    with patch.object(build, "_library", lambda: "not in this test"), without_onednn:
        yield


@pytest.fixture
def runner() -> ModelRunner:
    made = open_runner(model_config(), "torch_native", CPU, torch.float32)
    generator = torch.Generator().manual_seed(0)
    for layer in made.decoder.layers:
        for linear in (layer.attention.qkv, layer.attention.o, layer.mlp.gate_up, layer.mlp.down):
            linear.parts[0].data.normal_(0, 0.05, generator=generator)
    made.decoder.embedding.data.normal_(0, 0.5, generator=generator)
    made.cache.storage.normal_(0, 1, generator=generator)
    made.decoder.attention = FixedShapes()
    return made


def graphs(runner: ModelRunner, sizes: list[int], cuda: FakeCuda | None = None) -> CapturedSteps:
    recorder = GraphRecorder(CPU, cuda or FakeCuda())
    return CapturedSteps(runner.decoder, runner.cache, recorder, sizes, 64, one_result=True)


def test_replays_give_what_eager_steps_give_for_every_size_of_a_batch(runner: ModelRunner) -> None:
    """1 to 9 requests through four buckets; new numbers come through the static tensors alone."""
    cuda = FakeCuda()
    steps = graphs(runner, [1, 2, 4, 9], cuda)
    steps.record_all()
    assert list(steps.recorded) == [9, 4, 2, 1], "the largest first"
    for size in range(1, 10):
        plan = decodes(*(3 + 2 * n + size % 3 for n in range(size)), seed=size)
        assert_same(steps, runner, plan, eager_logits)
    assert [graph.replays for graph in cuda.captured] == [5, 2, 1, 1]


def eager_logits(runner: ModelRunner, plan: Any) -> torch.Tensor:
    recorded, runner.decoder.attention = (
        runner.decoder.attention,
        open_runner(model_config(), "torch_native", CPU, torch.float32).decoder.attention,
    )
    try:
        return eager(runner, plan)
    finally:
        runner.decoder.attention = recorded


def test_recording_and_rows_of_nobody_write_nothing(runner: ModelRunner) -> None:
    steps = graphs(runner, [1, 8])
    before = runner.cache.storage.clone()
    steps.record_all()
    assert torch.equal(runner.cache.storage, before), "a capture is no step"
    plan = decodes(6, 9, 2)
    steps.run(plan)
    changed = (runner.cache.storage != before).flatten(3).any(3).any(0).nonzero().tolist()
    items = plan.scheduled
    assert changed == [[item.request.block_table[item.start // 4], item.start % 4] for item in items]


def test_the_same_storage_at_every_replay(runner: ModelRunner) -> None:
    steps = graphs(runner, [2, 4])
    steps.record_all()
    inputs = steps.inputs

    def addresses() -> list[int]:
        tensors = (inputs.tokens, inputs.positions, inputs.slots, inputs.lengths, inputs.starts, inputs.tables)
        return [one.data_ptr() for one in tensors]

    at, first = addresses(), steps.run(decodes(5, 6))
    kept, lies = first.clone(), first.data_ptr()
    for turn, lengths in enumerate(((15, 16), (3, 4, 5), (7,), (1, 2, 3, 4))):
        found = steps.run(decodes(*lengths, seed=turn + 1))
        assert addresses() == at and found.data_ptr() == lies, "one result for all buckets"
    assert not torch.equal(first[:1], kept[:1])


def test_a_step_that_asks_for_a_value_cannot_be_captured(runner: ModelRunner) -> None:
    class Curious(FixedShapes):
        def prepare(self, batch: Any, window: int | None, dtype: torch.dtype) -> Any:
            assert int(batch.lengths[0]) >= 0
            return super().prepare(batch, window, dtype)

    runner.decoder.attention = Curious()
    with pytest.raises(NotPermitted, match="_local_scalar_dense"):
        graphs(runner, [2]).record_all()


def test_a_number_that_is_no_static_tensor_is_found_out(runner: ModelRunner) -> None:
    """The comparison with eager steps would notice: here the positions of the capture stay in the graph."""
    steps = graphs(runner, [2])

    class Frozen(FixedShapes):
        def prepare(self, batch: Any, window: int | None, dtype: torch.dtype) -> Any:
            lengths = batch.lengths.clone()
            graph = steps.recorder.cuda
            batch.lengths = torch.full_like(lengths, 3) if isinstance(graph, FakeCuda) else lengths
            return super().prepare(batch, window, dtype)

    runner.decoder.attention = Frozen()
    steps.record_all()
    plan = decodes(9, 17)
    assert not torch.allclose(steps.run(plan), eager_logits(runner, plan), atol=1e-3)


def test_warm_up_comes_before_each_capture_and_streams_wait(runner: ModelRunner) -> None:
    cuda = FakeCuda()
    steps = graphs(runner, [1, 2], cuda)
    steps.record_all()
    one = ["side waits for current", "warm-up", "current waits for side", "capture"]
    assert cuda.log == ["pool", *one, *one], "one pool for all graphs"
    assert steps.recorder.bytes == 2 << 20  # type: ignore[attr-defined]


def test_memory_that_does_not_suffice_is_told(runner: ModelRunner) -> None:
    with pytest.raises(WorkbenchError, match=r"0\.00 GB of GPU memory.*gpu_memory_utilization.*enforce_eager"):
        graphs(runner, [1, 2, 4], FakeCuda(free=5 << 19, takes=1 << 20)).record_all()


def test_a_fake_graph_is_a_graph() -> None:
    """The stand-in itself: Python does not run again, views and writes in place do what they did."""
    cuda, calls, x = FakeCuda(), [], torch.ones(3)
    graph = Graph()
    with cuda.graph(graph, (0, 1), cuda.Stream(CPU), "thread_local"):
        calls.append(1)
        y = (x + 1).view(3, 1).mul_(2)[:2]
    x.fill_(5)
    graph.replay()
    assert calls == [1] and y.flatten().tolist() == [12, 12]


# -- which sizes


def test_default_sizes_leave_no_gap_at_the_end() -> None:
    assert capture_sizes(1) == [1] and capture_sizes(3) == [1, 2, 3] and capture_sizes(8) == [1, 2, 4, 8]
    assert capture_sizes(37) == [1, 2, 4, 8, 16, 24, 32, 37]
    sizes = capture_sizes(4096)
    assert sizes[-1] == 512 and sizes[-2] == 496 and {248, 256, 272} <= set(sizes) and 264 not in sizes
    for most in range(1, 600):
        assert capture_sizes(most)[-1] == min(most, 512)


def test_every_batch_has_a_bucket_or_runs_without(runner: ModelRunner) -> None:
    for most in (1, 2, 3, 5, 17, 40):
        steps = graphs(runner, capture_sizes(most))
        assert all(size <= steps.bucket(size) <= max(8, size + 8) for size in range(1, most + 1))
    assert not graphs(runner, [1, 2]).serves(decodes(3, 4, 5)), "above the largest: operation by operation"


def test_wanted_sizes_are_checked() -> None:
    assert capture_sizes(64, [1, 7, 64]) == [1, 7, 64]
    with pytest.raises(UsageError, match="65 is beyond max_num_seqs=64"):
        capture_sizes(64, [1, 65])
    assert EngineConfig(cudagraph_capture_sizes=[1, 2]).cudagraph_capture_sizes == (1, 2)  # type: ignore[arg-type]
    for wrong in ([], [0], [2, 1], [1, 1], ["1"], [1.5], 4, "1 2", [True]):
        with pytest.raises(UsageError, match=r"cudagraph_capture_sizes=.*whole numbers from 1 on, rising"):
            EngineConfig(cudagraph_capture_sizes=wrong)  # type: ignore[arg-type]
    for other in ("enforce_eager=False", "enable_kernel_fusion=True"):
        name, value = other.split("=")
        with pytest.raises(UsageError, match=f"no effect without {other}"):
            EngineConfig(cudagraph_capture_sizes=(1,), **{name: value == "False"})  # type: ignore[arg-type]


def test_sizes_where_there_are_no_graphs(runner: ModelRunner) -> None:
    with pytest.raises(UsageError, match="no effect on cpu"):
        captured_steps(runner.decoder, runner.cache, 4, 64, (1, 2))


def test_what_cannot_be_captured_says_why(runner: ModelRunner) -> None:
    def on_gpu(capturable: bool, mixture: bool = False) -> Any:
        attention = SimpleNamespace(name="sdpa", capturable=capturable)
        capturable = capturable and not mixture
        return SimpleNamespace(device=torch.device("cuda", 0), attention=attention, capturable=capturable)

    assert "no CUDA graphs on cpu" in cuda_graphs.cannot_capture(runner.decoder)
    assert "sdpa looks at lengths" in cuda_graphs.cannot_capture(on_gpu(False))
    with pytest.raises(UsageError, match="no effect here: attention by sdpa"):
        cuda_graphs.graph_steps(on_gpu(False), runner.cache, 4, 64, (1,))
    assert "experts" in cuda_graphs.cannot_capture(on_gpu(True, mixture=True))
    assert cuda_graphs.graph_steps(on_gpu(False), runner.cache, 4, 64, None) is None
    with patch.object(cuda_graphs.launch, "cannot_run", lambda device: ""):
        assert cuda_graphs.cannot_capture(on_gpu(True)) == ""


def test_memory_is_reckoned_beforehand() -> None:
    config = ModelConfig.from_dict(shipped_config("qwen2.5-7b"))
    few, many = (graph_bytes(config, sizes, torch.bfloat16) for sizes in ([1, 2], capture_sizes(512)))
    logits = 512 * config.vocab_size * 6
    assert few < 256 << 20 and logits < many < 2 << 30
