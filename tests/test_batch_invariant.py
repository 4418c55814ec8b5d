"""`batch_invariant`: an answer's bits alone are its bits in any crowd; without it they are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from kernels.cpu import build
from tests.model.tiny import make_tiny
from tests.tiny_llm import assert_empty, open_llm
from workbench import LLM, SamplingParams
from workbench.attention.interface import AttentionBatch
from workbench.errors import UsageError
from workbench.model.batch_invariant import query_by_query, require_products
from workbench.model.mlp import open_part

ROOMY: dict[str, Any] = {"num_kv_blocks": 300, "enable_prefix_caching": False}
CROWDED: dict[str, Any] = {"num_kv_blocks": 40, "max_num_batched_tokens": 13, "max_num_seqs": 6}


def prompts(seed: int) -> list[list[int]]:
    """Of every length, some with a head in common."""
    draw = Random(seed)
    head = [draw.randrange(3, 200) for _ in range(17)]
    return [
        (head if draw.random() < 0.4 else []) + [draw.randrange(3, 200) for _ in range(draw.choice((1, 2, 7, 40, 90)))]
        for _ in range(9)
    ]


def numbers(llm: LLM, given: list[list[int]]) -> list[Any]:
    """Tokens, and the log-probability of each answered and each prompt token, to the last bit."""
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=9, ignore_eos=True, logprobs=3, prompt_logprobs=1)
    outputs = llm.generate(given, params, use_tqdm=False)
    assert_empty(llm)
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs, o.prompt_logprobs) for o in outputs]


def alone_and_crowded(folder: Path, **options: Any) -> tuple[list[Any], list[Any], int]:
    """Each prompt in an engine to itself; all in a narrow one, in chunks, preempted, with shared heads; preemptions."""
    given = prompts(1)
    own = open_llm(folder, **ROOMY, max_model_len=128, **options)
    alone = [numbers(own, [prompt])[0] for prompt in given]
    narrow = LLM(weights_of=own, block_size=4, **{**CROWDED, "max_model_len": 128, **options})
    preempted: list[str] = []
    narrow.engine.listeners.append(lambda trace: preempted.extend(trace.preempted))
    return alone, numbers(narrow, given), len(preempted)


@pytest.mark.parametrize("family", ["llama3", "qwen2-window", "qwen3-moe", "qwen2-moe"])
@pytest.mark.parametrize("options", [{}, {"enforce_eager": True}, {"attention_backend": "torch_native"}], ids=str)
def test_alone_and_in_a_crowd_every_bit_is_the_same(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    make_tiny(family, tmp_path)
    alone, crowded, preempted = alone_and_crowded(tmp_path, batch_invariant=True, **options)
    assert preempted and alone == crowded


@pytest.mark.parametrize("quantization", ["w8a8-int8", "w4a16", "w8a16"])
def test_weights_of_whole_numbers_too(tmp_path: Path, quantization: str) -> None:
    make_tiny("llama3", tmp_path)
    alone, crowded, _ = alone_and_crowded(tmp_path, batch_invariant=True, quantization=quantization)
    assert alone == crowded


def test_without_it_some_bits_differ(tmp_path: Path) -> None:
    """So the comparison above can fail."""
    make_tiny("qwen2", tmp_path)
    alone, crowded, _ = alone_and_crowded(tmp_path)
    assert [tokens for tokens, *_ in alone] == [tokens for tokens, *_ in crowded] and alone != crowded


def test_triton_by_splits_of_a_fixed_size(tmp_path: Path) -> None:
    make_tiny("llama3", tmp_path, num_hidden_layers=1)
    code = (
        "import sys; from pathlib import Path; from tests.test_batch_invariant import interpreted; "
        "interpreted(Path(sys.argv[1]))"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True, timeout=250)


def interpreted(folder: Path) -> None:
    given = [[7, 8, 9], list(range(3, 40)), [5]]
    own = open_llm(folder, **ROOMY, max_model_len=64, batch_invariant=True, attention_backend="triton")
    assert own.runner.decoder.attention.split_size  # type: ignore[attr-defined]
    alone = [numbers(own, [prompt])[0] for prompt in given]
    narrow = {**CROWDED, "max_model_len": 64, "batch_invariant": True, "attention_backend": "triton"}
    assert alone == numbers(LLM(weights_of=own, block_size=4, **narrow), given)


def test_every_query_becomes_a_request() -> None:
    tables = torch.tensor([[4, 5], [9, 9], [1, 2]])
    starts, lengths = torch.tensor([0, 3, 3, 4], dtype=torch.int32), torch.tensor([5, 2, 8], dtype=torch.int32)
    batch = AttentionBatch([0, 3, 3, 4], [5, 2, 8], tables, 4, 16, starts, lengths)
    made = query_by_query(batch)
    assert made.query_start == made.starts.tolist() == [0, 1, 2, 3, 4]
    assert made.seq_lens == made.lengths.tolist() == [3, 4, 5, 8]
    assert made.block_tables.tolist() == [[4, 5]] * 3 + [[1, 2]]


def test_the_gate_of_a_shared_expert_has_the_same_bits_in_any_batch() -> None:
    """A plain sigmoid has not: of a vector's rest, which is computed one by one, the last bits are others."""
    gate = torch.randn(3001, 1, generator=torch.Generator().manual_seed(0)) * 4
    together = open_part(gate)
    assert torch.allclose(together.double(), gate.double().sigmoid(), atol=2e-7, rtol=0)
    for count in (1, 7, 8, 9, 33):
        assert torch.equal(together, torch.cat([open_part(rows) for rows in gate.split(count)]))


def test_where_products_cannot_promise_it_is_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with pytest.raises(UsageError, match="a GPU's matrix products go to the vendor's library"):
        require_products(torch.device("cuda"), latent=False, batch_invariant=True)
    with pytest.raises(UsageError, match="torch multiplies queries into latents"):
        require_products(torch.device("cpu"), latent=True, batch_invariant=True)
    require_products(torch.device("cuda"), latent=True, batch_invariant=False)
    with pytest.raises(UsageError, match="disable_cascade_attn=False has no effect without batch_invariant=False"):
        open_llm(folder, batch_invariant=True, attention_backend="triton", disable_cascade_attn=False)
    with pytest.raises(UsageError, match="batch_invariant=True: its bits depend on what else is in the batch"):
        open_llm(folder, batch_invariant=True, attention_backend="sdpa")
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", "none")
    build._library.cache_clear()
    try:
        with pytest.raises(UsageError, match="WORKBENCH_CPU_KERNELS=none"):
            open_llm(folder, batch_invariant=True)
    finally:
        build._library.cache_clear()
