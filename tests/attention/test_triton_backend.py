"""The `triton` backend, interpreted where there is no GPU: the specification, the engine's tokens, what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.triton import launch
from tests.attention.paged_batches import Case, random_case
from tests.tiny_llm import open_llm, tokens
from workbench.attention.interface import Heads
from workbench.attention.registry import attention_backend
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


def test_a_window_gathers_only_what_may_be_seen() -> None:
    case = Case([(90, 3), (4, 1), (7, 7)], 4, 2, 8, 4, 5, seed=0)
    prepared = attention_backend("triton", case.heads).prepare(case.batch, case.window, torch.float32)
    assert prepared.key_start.tolist() == [0, 7, 11, 18] and len(prepared.seen.slots) == 18


def test_empty_requests_and_rows_that_see_nothing() -> None:
    case = Case([(0, 0), (0, 1), (5, 1), (9, 0), (2, 4), (0, 3)], 4, 2, 8, 4, None, seed=0)
    torch.testing.assert_close(attend(case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Not in one bit."""
    together = Case([(20, 1), (90, 1), (33, 33), (50, 8)], 4, 2, 8, 16, None, seed=3)
    out = attend(together, together.cache)
    for b, request in enumerate(together.requests):
        rows = slice(together.batch.query_start[b], together.batch.query_start[b + 1])
        alone = Case([request], 4, 2, 8, 16, None, seed=0)
        alone.q = together.q[rows]
        own = together.batch.block_tables[b : b + 1]
        alone.batch.block_tables = own[:, : -(-request[0] // 16)]
        assert torch.equal(attend(alone, together.cache), out[rows])


def test_the_engine_gives_the_same_tokens(folder: Path) -> None:
    """Prompts in chunks, decodes beside them, a shared head from the cache: whole answers through the kernel."""
    prompts = [[5, 6, 7], [8] * 20, [9], [8] * 12 + [3, 4]]
    options = {"max_num_batched_tokens": 12, "max_num_seqs": 3}
    expected = tokens(open_llm(folder, attention_backend="torch_native", **options), prompts)
    llm = open_llm(folder, attention_backend="triton", **options)
    assert llm.runner.decoder.attention.name == "triton"
    assert tokens(llm, prompts) == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"head_dim": 512}, "head_dim=512"), ({"dtype": torch.float64}, "float64")],
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
