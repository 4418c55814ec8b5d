"""The `triton` backend, interpreted where there is no GPU: the specification, the engine's tokens, what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.triton import cascade, launch, paged_call
from kernels.triton.paged_plan import Plan
from tests.attention.paged_batches import Case, random_case
from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm, tokens
from workbench import SamplingParams
from workbench.attention.interface import Heads
from workbench.attention.registry import attention_backend
from workbench.attention.triton import Triton
from workbench.errors import UsageError

HEADS = Heads(9, 3, 64, torch.float32, torch.device("cpu"), torch.float32)


def attend(case: Case, cache: torch.Tensor) -> torch.Tensor:
    backend = attention_backend("triton", case.heads)
    return backend.attend(case.q, cache, backend.prepare(case.batch, case.window, cache.dtype), case.scale)


@pytest.mark.parametrize("seed", range(10))
def test_it_equals_the_specification_and_reads_nothing_unwritten(seed: int) -> None:
    case = random_case(1000 + seed)
    out = attend(case, case.poisoned())
    torch.testing.assert_close(out, case.attend("reference"), atol=1e-5, rtol=1e-5)
    assert torch.equal(out, attend(case, case.poisoned(1e30)))


@pytest.mark.parametrize("length", [4, 5, 6, 40])
def test_prompts_around_the_window(length: int) -> None:
    case = Case([(length, length), (length, 1), (length, 2)], 4, 2, 8, 4, 5, seed=length)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


def test_a_recorded_step_is_planned_without_a_look_at_its_numbers() -> None:
    """One query a request and empty lists, as `CapturedSteps` gives them; tables as wide as the longest request."""
    case = Case([(90, 1), (4, 1), (300, 1)], 4, 2, 8, 4, None, seed=0)
    expected = attend(case, case.poisoned())
    case.batch.query_start, case.batch.seq_lens = [], []
    assert torch.equal(attend(case, case.poisoned()), expected)


def test_empty_requests_and_rows_that_see_nothing() -> None:
    case = Case([(0, 0), (0, 1), (5, 1), (9, 0), (2, 4), (0, 3)], 4, 2, 8, 4, None, seed=0)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


def test_with_fixed_splits_a_row_does_not_depend_on_its_neighbours() -> None:
    """Not in one bit."""

    def attend_fixed(case: Case, cache: torch.Tensor) -> torch.Tensor:
        backend = Triton(case.heads, split_size=64)
        return backend.attend(case.q, cache, backend.prepare(case.batch, None, cache.dtype), case.scale)

    together = Case([(20, 1), (90, 1), (33, 33), (150, 8)], 4, 2, 8, 16, None, seed=3)
    out = attend_fixed(together, together.cache)
    for b, request in enumerate(together.requests):
        rows = slice(together.batch.query_start[b], together.batch.query_start[b + 1])
        alone = Case([request], 4, 2, 8, 16, None, seed=0)
        alone.q = together.q[rows]
        own = together.batch.block_tables[b : b + 1]
        alone.batch.block_tables = own[:, : -(-request[0] // 16)]
        assert torch.equal(attend_fixed(alone, together.cache), out[rows])


def test_the_engine_gives_the_same_tokens(folder: Path) -> None:
    """Prompts in chunks, decodes beside them, a shared head from the cache: whole answers through the kernel."""
    prompts = [[5, 6, 7], [8] * 20, [9], [8] * 12 + [3, 4]]
    options = {"max_num_batched_tokens": 12, "max_num_seqs": 3}
    expected = tokens(open_llm(folder, attention_backend="torch_native", **options), prompts)
    llm = open_llm(folder, attention_backend="triton", **options)
    assert llm.runner.decoder.attention.name == "triton"
    assert tokens(llm, prompts) == expected


def test_the_engine_gives_the_same_tokens_by_splits_and_odd_blocks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU of 132 multiprocessors: a long context is split, and its partial results merged, at every step."""
    monkeypatch.setattr(paged_call, "multiprocessors", lambda device: 132)
    prompts, options = [[i % 97 + 3 for i in range(270)], [5, 6, 7]], {"block_size": 17}
    few = SamplingParams(temperature=0, max_tokens=3)
    expected = tokens(open_llm(folder, attention_backend="torch_native", **options), prompts, few)
    llm = open_llm(folder, attention_backend="triton", **options)
    seen = []
    plan = llm.runner.decoder.attention.prepare
    monkeypatch.setattr(
        llm.runner.decoder.attention, "prepare", lambda *args: seen.append(plan(*args).plan.num_splits) or plan(*args)
    )
    assert tokens(llm, prompts, few) == expected
    assert max(seen) > 1


def test_the_engine_gives_the_same_tokens_within_a_window(tmp_path: Path) -> None:
    """A model that sees seven tokens back, its blocks of one token."""
    make_tiny("mistral", tmp_path, seed=1)
    options = {"block_size": 1, "max_num_batched_tokens": 12}
    expected = tokens(open_llm(tmp_path, attention_backend="torch_native", **options))
    assert tokens(open_llm(tmp_path, attention_backend="triton", **options)) == expected


def sharing() -> Case:
    """Four requests that begin with the same 256 tokens, decoding and in a chunk, beside one that shares nothing."""
    case = Case([(260, 1), (271, 3), (257, 1), (310, 20), (90, 1)], 4, 2, 8, 16, None, seed=5)
    for b in (1, 2, 3):
        case.keys[b][:256], case.values[b][:256] = case.keys[0][:256], case.values[0][:256]
        case.cache[case.tables[b][:16]] = torch.nan
        case.tables[b][:16] = case.tables[0][:16]
        case.batch.block_tables[b, :16] = case.batch.block_tables[0, :16]
    case.batch.host_tables = case.tables
    return case


def test_a_shared_head_is_attended_once() -> None:
    case = sharing()
    backend = attention_backend("triton", case.heads, cascade=True)
    prepared = backend.prepare(case.batch, None, torch.float32)
    assert isinstance(prepared.plan, cascade.CascadePlan)
    assert prepared.plan.heads.seq_lens.tolist() == [256] and len(prepared.plan.rows) == 25
    out = backend.attend(case.q, case.cache, prepared, case.scale)
    torch.testing.assert_close(out, case.dense(), atol=1e-5, rtol=1e-5)


def test_a_head_is_not_shared_within_a_window_nor_where_it_would_not_pay() -> None:
    case = sharing()
    backend = attention_backend("triton", case.heads, cascade=True)
    assert isinstance(backend.prepare(case.batch, 300, torch.float32).plan, Plan)
    case.batch.host_tables = [[8, *case.tables[0][1:]], *case.tables[1:]]  # three that share are too few
    assert isinstance(backend.prepare(case.batch, None, torch.float32).plan, Plan)


def test_what_does_not_go_with_shared_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step, which cannot look who shares; a promise of the same bits in any batch."""
    monkeypatch.setattr("workbench.attention.triton.interpreted", lambda: False)
    assert Triton(HEADS).capturable and not Triton(HEADS, cascade=True).capturable
    with pytest.raises(ValueError, match="split_size=64 promises the same bits"):
        Triton(HEADS, split_size=64, cascade=True)


def test_the_engine_finds_the_heads_that_its_prefix_index_shares(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that begin alike hold the same blocks, and with the option on their steps read those once."""
    head = [i % 97 + 3 for i in range(24)]
    prompts = [[*head, 5], [*head, 6, 7], [8] * 9, [*head, 9]]
    few = SamplingParams(temperature=0, max_tokens=3)
    expected = tokens(open_llm(folder, attention_backend="torch_native"), prompts, few)
    llm = open_llm(folder, attention_backend="triton", disable_cascade_attn=False)
    soon = partial(cascade.shared_heads, least_requests=2, least_tokens=8)
    found = []

    def spy(*given: Any) -> list[cascade.SharedHead]:
        found.append(soon(*given))
        return found[-1]

    monkeypatch.setattr(cascade, "shared_heads", spy)
    tokens(llm, [head], few)  # from here on its blocks are in the index
    assert tokens(llm, prompts, few) == expected
    assert max(len(shared.requests) for heads in found for shared in heads if shared.num_blocks == 6) == 3
    assert not open_llm(folder, attention_backend="triton").runner.decoder.attention.cascade


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head_dim": 512}, "head_dim=512"),
        ({"dtype": torch.float64}, "float64"),
        ({"cache_dtype": torch.int8}, "a cache of torch.int8"),
    ],
)
def test_heads_it_cannot_serve_are_refused(change: dict, reason: str) -> None:
    with pytest.raises(UsageError, match=f"attention_backend='triton' cannot serve this model: .*{reason}"):
        attention_backend("triton", HEADS._replace(**change))


def test_without_a_gpu_it_is_refused_unless_kernels_are_interpreted(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = f"from workbench import LLM; LLM(model={str(folder)!r}, device='cpu', attention_backend='triton')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "UsageError" in last
    assert "attention_backend='triton'" in last and "TRITON_INTERPRET=1" in last and "'sdpa'" in last


def test_where_triton_is_missing_that_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRITON_INTERPRET=1 would not help, so it is not what the message names."""
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    for device in ("cpu", "cuda"):
        with pytest.raises(UsageError, match=r"triton is not installed; .*use 'sdpa' or 'auto'") as refused:
            attention_backend("triton", HEADS._replace(device=torch.device(device)))
        assert "TRITON_INTERPRET" not in str(refused.value)
