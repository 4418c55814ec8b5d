"""LLM and its options: each takes effect, is worked out and told, or is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_llm import open_llm, tokens
from workbench import LLM, EngineConfig, SamplingParams
from workbench.errors import UsageError, WorkbenchError


def test_options_or_a_config_but_not_both(folder: Path) -> None:
    config = EngineConfig(model=str(folder), device="cpu", num_kv_blocks=64, block_size=4)
    assert tokens(LLM(config)) == tokens(open_llm(folder))
    with pytest.raises(UsageError, match="not both; put block_size into the config"):
        LLM(config, block_size=8)
    with pytest.raises(UsageError, match="LLM takes an EngineConfig or keyword options such as model=…, not 'some'"):
        LLM("some")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_sise": 8}, "unknown engine option 'block_sise'; did you mean 'block_size'"),
        (
            {"attention_backend": "flashinfer"},
            "attention_backend='flashinfer' cannot serve this model: it runs on GPUs",
        ),
        ({"sampling_backend": "flashinfer"}, "sampling_backend='flashinfer' cannot serve this model: it runs on GPUs"),
        ({"quantization": "fp8"}, "quantization='fp8' is not supported yet"),
        ({"max_model_len": 100_000}, "max_model_len=100000 is beyond the 512 positions"),
        ({"num_kv_blocks": 4, "kv_cache_memory_bytes": 10**6}, "give one of them"),
        ({"num_kv_blocks": None, "kv_cache_memory_bytes": 10}, "does not hold one block"),
        ({"model": "smollm"}, "did you mean"),
    ],
)
def test_wrong_options_are_refused_by_name(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_llm(folder, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_kv_blocks": 10**7, "block_size": 1024}, "num_kv_blocks=10000000 × "),
        ({"num_kv_blocks": 64, "block_size": 10**12}, "num_kv_blocks=64 × "),
        ({"num_kv_blocks": None, "kv_cache_memory_bytes": 10**15}, "kv_cache_memory_bytes=1000000000000000 is"),
        ({"num_kv_blocks": 2**24 + 1}, "num_kv_blocks=16777217 is too large: the most is 16777216"),
    ],
)
def test_a_pool_larger_than_memory_is_refused_before_it_is_allocated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], told: str
) -> None:
    def allocate(*sizes: object) -> None:
        raise AssertionError("the pool was allocated")

    monkeypatch.setattr("workbench.llm.KVCache", allocate)
    with pytest.raises(UsageError, match=told):
        open_llm(folder, **options)
    with pytest.raises(AssertionError, match="was allocated"):
        open_llm(folder)


def test_a_device_that_is_not_there_is_refused(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        open_llm(folder, device="cuda")


def test_a_model_that_is_not_here_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    with pytest.raises(WorkbenchError, match="fetch"):
        LLM(model="smollm2-135m", device="cpu")


def test_sizes_are_worked_out_and_told(folder: Path) -> None:
    llm = open_llm(folder, num_kv_blocks=None, kv_cache_memory_bytes=1 << 20)
    block_bytes = 4 * llm.model_config.kv_bytes_per_token("float32")
    assert llm.config.num_kv_blocks == llm.engine.pool.num_blocks == (1 << 20) // block_bytes
    assert llm.config.max_model_len == 512
    storage = llm.runner.cache.storage
    assert storage.numel() * storage.element_size() == llm.config.num_kv_blocks * block_bytes
    by_memory = open_llm(folder, num_kv_blocks=None, max_num_seqs=3, max_model_len=30)
    assert by_memory.config.num_kv_blocks == 3 * 8


def test_options_take_effect(folder: Path) -> None:
    llm = open_llm(folder, max_num_batched_tokens=5, max_num_seqs=2, dtype="bfloat16", attention_backend="torch_native")
    shares: list[list[int]] = []
    llm.engine.listeners.append(lambda trace: shares.append([item["num_tokens"] for item in trace.scheduled]))
    assert [len(answer) for answer in tokens(llm)] == [6, 6, 6]
    assert max(map(sum, shares)) <= 5 and max(map(len, shares)) == 2
    decoder = llm.runner.decoder
    assert decoder.embedding.format == decoder.layers[0].attention.qkv.parts[0].format == "bfloat16"
    assert decoder.dtype is llm.runner.cache.storage.dtype is torch.float32, "weights of 16 bits, float32 activations"
    assert llm.runner.decoder.attention.name == "torch_native"


def test_the_sampling_backend_takes_effect_and_changes_no_token(folder: Path) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=12, ignore_eos=True)
    answers = []
    for backend, maker in (("auto", "cpu"), ("cpu", "cpu"), ("torch", "reference"), ("triton", "triton")):
        llm = open_llm(folder, sampling_backend=backend)
        assert llm.runner.sampling_maker == maker
        answers.append(llm.generate([[1, 2, 3], [9, 8]], params, use_tqdm=False))
    tokens = [[one.token_ids for one in answer] for answer in answers]
    assert tokens[0] == tokens[1] == tokens[2] == tokens[3]


def test_unfused_operations_are_taken_and_change_no_token(folder: Path) -> None:
    fused, apart = open_llm(folder), open_llm(folder, enable_kernel_fusion=False)
    assert (fused.runner.decoder.maker, apart.runner.decoder.maker) == ("auto", "reference")
    assert apart.runner.captured is None and apart.runner.recorder is None, "torch's operations cannot be recorded"
    assert tokens(fused) == tokens(apart)
    shared = LLM(weights_of=apart, num_kv_blocks=64)
    assert shared.runner.decoder.maker == "auto" and apart.runner.decoder.maker == "reference"


def test_dummy_weights_are_the_same_by_seed() -> None:
    """A shipped configuration runs without a checkpoint; with random weights of the right shapes."""
    options = {"model": "smollm2-135m", "load_format": "dummy", "device": "cpu", "num_kv_blocks": 8}
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    answers = [
        LLM(seed=seed, **options).generate([[1, 2, 3]], params, use_tqdm=False)[0].token_ids for seed in (0, 0, 1)
    ]
    assert answers[0] == answers[1] != answers[2]
