"""Adapters to other libraries, against stand-ins that check the documented arguments and compute with torch."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.reference import expanded_latent_attention
from tests.attention import stand_ins
from tests.attention.paged_batches import Case, random_case
from workbench.attention.interface import AttentionBatch, Heads
from workbench.attention.latent_shape import LatentAttention
from workbench.attention.registry import ADAPTERS, open_backend
from workbench.attention.table import CANDIDATES, UNTRIED
from workbench.errors import WorkbenchError

PAGES = {"flash_attn": 256}
OVER_KEYS = [name for name in ADAPTERS if name != "flashmla"]
MIXED = [(260, 1), (7, 7), (32, 5), (1, 1), (48, 20)]


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins.install(monkeypatch, *ADAPTERS)
    monkeypatch.setattr("workbench.attention.adapters.flashinfer.WORKSPACE_BYTES", 1024)


def attend(backend: Any, case: Case, cache: torch.Tensor) -> torch.Tensor:
    return backend.attend(case.q, cache, backend.prepare(case.batch, case.window, cache.dtype), case.scale)


def check_keys(name: str, backend: Any = None) -> None:
    """Mixed batches with and without a window; the same object for one step after the other."""
    size = PAGES.get(name, 16)
    for heads, window in (((4, 2), None), ((9, 3), 5), ((4, 1), 1)):
        cases = [Case(MIXED, *heads, 8, size, window, seed=1), Case([(20, 3), (5, 1)], *heads, 8, size, window, seed=2)]
        served = backend(cases[0].heads) if backend else open_backend(name, cases[0].heads)
        for case in cases:
            torch.testing.assert_close(attend(served, case, case.poisoned()), case.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", OVER_KEYS)
def test_it_equals_the_plain_formula(name: str) -> None:
    check_keys(name)


@pytest.mark.parametrize("name", OVER_KEYS)
def test_random_batches(name: str) -> None:
    for seed in range(4):
        case = random_case(4000 + seed, PAGES.get(name))
        out = attend(open_backend(name, case.heads), case, case.poisoned())
        torch.testing.assert_close(out, case.attend("reference"), atol=1e-5, rtol=1e-5)


def test_flashinfer_plans_once_for_all_layers_of_a_step() -> None:
    case = Case(MIXED, 4, 2, 8, 16, None, seed=1)
    backend, wrapper = open_backend("flashinfer", case.heads), stand_ins.BatchPrefillWithPagedKVCacheWrapper
    wrapper.plans = 0
    step = [backend.prepare(case.batch, window, torch.float32) for window in (None, 6)]
    for _ in range(3):  # layers take turns with their windows
        for window, prepared in zip((None, 6), step, strict=True):
            out = backend.attend(case.q, case.cache, prepared, case.scale)
            torch.testing.assert_close(out, case.attend("reference", window=window), atol=1e-5, rtol=1e-5)
    assert wrapper.plans == 2


LATENT = LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=8, v_head_dim=6)
LATENT_HEADS = Heads(3, 1, 72, torch.float32, torch.device("cpu"), torch.float32, LATENT)


def check_latent(name: str = "flashmla", backend: Any = None) -> None:
    draw = torch.Generator().manual_seed(0)
    requests = [(70, 1), (9, 9), (130, 1), (64, 4), (3, 1), (20, 4)]
    lengths, starts = [length for length, _ in requests], [0]
    for _, queries in requests:
        starts.append(starts[-1] + queries)
    width = max(-(-length // 64) for length in lengths)
    needed = [-(-length // 64) for length in lengths]
    order = torch.randperm(sum(needed), generator=draw).split(needed)
    tables = torch.stack([torch.cat((own, own[:1].expand(width - len(own)))) for own in order])
    cache = torch.randn(sum(needed), 64, 576, generator=draw)
    q = torch.randn(starts[-1], 3, 72, generator=draw)
    key_up, value_up = torch.randn(3, 8, 512, generator=draw) / 20, torch.randn(3, 6, 512, generator=draw) / 20
    tensors = (torch.tensor(numbers, dtype=torch.int32) for numbers in (starts, lengths))
    batch = AttentionBatch(starts, lengths, tables, 64, 4 * 576, *tensors)
    served = backend(LATENT_HEADS) if backend else open_backend(name, LATENT_HEADS)
    prepared = served.prepare(batch, None, torch.float32)
    expected = expanded_latent_attention(q, cache, tables, starts, lengths, key_up, value_up, scale=0.1)
    for _ in range(2):  # layers
        out = served.attend_latent(q, cache, prepared, key_up, value_up, 0.1)
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_flashmla_equals_the_expanded_way() -> None:
    check_latent()


FAULTS = [
    ("flash_attn", "(window - 1, 0)", "(window, 0)"),
    ("flash_attn", '"causal": True', '"causal": False'),
    ("flash_attn", "(1, 0)", "(0, 1)"),
    ("flash_attn", "softmax_scale=scale", "softmax_scale=q.shape[-1] ** -1"),
    ("flash_attn", "batch.block_tables.to(torch.int32)", "batch.block_tables"),
    ("flash_attn", "cache.unbind(2)", "reversed(cache.unbind(2))"),
    ("fa3", "queries_and_mask(batch, window)", "queries_and_mask(batch, None)"),
    ("fa3", '"cache_seqlens": batch.lengths', '"cache_seqlens": batch.lengths - 1'),
    ("fa3", "cache.unbind(2)", "reversed(cache.unbind(2))"),
    ("flashinfer", "window - 1", "window"),
    ("flashinfer", "(n - 1) % size + 1", "n % size"),
    ("flashinfer", "cache.unbind(2)", "cache.unbind(2)[::-1]"),
    ("flashinfer", "batch.block_tables[used]", "batch.block_tables.flatten()"),
    ("flashinfer", "if scale not in prepared.planned:", "if not hasattr(wrapper, 'scale'):"),
    ("flashinfer", "-(-length // size)", "length // size + 1"),
    ("xformers", "make_local_attention_from_bottomright(window)", "make_local_attention_from_bottomright(window + 1)"),
    ("xformers", "num_kv_heads, group, head_dim)", "group, num_kv_heads, head_dim).transpose(2, 3)"),
    ("xformers", "kv_seqlen=seen.counts", "kv_seqlen=counts"),
    ("flashmla", "rows, batch, tables, lengths, schedule in prepared", "rows, batch, tables, lengths, _ in prepared"),
    ("flashmla", "batch.lengths[own]", "batch.lengths[: len(requests)]"),
    ("flashmla", "absorbed[rows]", "absorbed[: len(rows)]"),
]


@pytest.mark.parametrize(("name", "right", "wrong"), FAULTS)
def test_seeded_faults_are_noticed(name: str, right: str, wrong: str) -> None:
    module = import_module(f"workbench.attention.adapters.{name}")
    source = Path(str(module.__file__)).read_text()
    assert source.count(right) == 1, "the fault no longer fits the adapter"
    faulty: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(right, wrong), name, "exec"), faulty)
    with pytest.raises((AssertionError, RuntimeError, ValueError, IndexError, TypeError, NameError)):
        (check_latent if name == "flashmla" else check_keys)(name, faulty["Adapter"])


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_library_that_cannot_be_loaded_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built for another torch, or a release that has other names."""
    heads = LATENT_HEADS if name == "flashmla" else Case([(3, 1)], 4, 2, 8, 16, None, seed=0).heads
    module, told = CANDIDATES[name].module, "is installed and cannot be loaded"
    monkeypatch.setitem(sys.modules, module, None)  # import raises ImportError
    for other in [other for other in sys.modules if other.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, other, None)
    with pytest.raises(
        WorkbenchError, match=f"attention_backend='{name}': {module} {told} .*; install it anew .*'auto'"
    ):
        open_backend(name, heads)
    if name != "xformers":
        stand_ins.put(monkeypatch, module)
        with pytest.raises(WorkbenchError, match=told):
            open_backend(name, heads)


def test_each_says_that_it_never_ran_on_hardware() -> None:
    folder = Path(str(import_module("workbench.attention.adapters").__file__)).parent
    assert {file.stem for file in folder.glob("*.py")} == {"__init__", *ADAPTERS}
    for name in ADAPTERS:
        text = (folder / f"{name}.py").read_text()
        assert "Never yet run on hardware." in text.split('"""')[1] and len(text.splitlines()) <= 80
        assert CANDIDATES[name].tested == UNTRIED and CANDIDATES[name].install
