"""The cache as memory: zero, aligned, and free of charge until it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config
from workbench.model.kv_cache import ALIGNMENT, KVCache


def smollm2() -> ModelConfig:
    return ModelConfig.from_dict(shipped_config("smollm2-135m"))


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_a_large_pool_costs_nothing_until_it_is_written() -> None:
    before = resident_bytes()
    cache = KVCache(smollm2(), 4096, 16, torch.float32, torch.device("cpu"))
    assert cache.storage.nbytes > 2_900_000_000
    assert resident_bytes() - before < 100_000_000
    cache.layers[3][7] = 1.0
    assert cache.storage[3, 7].eq(1).all() and cache.storage[3, 8].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_zero_and_aligned(dtype: torch.dtype) -> None:
    cache = KVCache(smollm2(), 3, 16, dtype, torch.device("cpu"))
    assert cache.storage.dtype == dtype and not cache.storage.any()
    assert cache.storage.data_ptr() % ALIGNMENT == 0 and cache.storage.is_contiguous()
