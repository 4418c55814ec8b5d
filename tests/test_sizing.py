"""How long a request may be and how many blocks the pool holds."""

from __future__ import annotations

import pytest

from workbench.config import MAX_KV_BLOCKS, EngineConfig
from workbench.errors import UsageError, WorkbenchError
from workbench.sizing import CPU_POOL_LIMIT, cpu_pool_bytes, resolve_max_model_len, resolve_num_kv_blocks


def test_max_model_len_is_the_model_s_unless_lower() -> None:
    assert resolve_max_model_len(EngineConfig(), 2048) == 2048
    assert resolve_max_model_len(EngineConfig(max_model_len=100), 2048) == 100
    assert resolve_max_model_len(EngineConfig(max_model_len=2048), 2048) == 2048
    with pytest.raises(UsageError, match="max_model_len=2049 is beyond the 2048 positions"):
        resolve_max_model_len(EngineConfig(max_model_len=2049), 2048)


def blocks(
    free: int = 10**12,
    max_model_len: int = 100,
    bytes_per_token: int = 10,
    memory: int | None = None,
    **options: object,
) -> int:
    return resolve_num_kv_blocks(EngineConfig(block_size=16, **options), max_model_len, bytes_per_token, free, memory)


def test_blocks_as_given() -> None:
    assert blocks(num_kv_blocks=7, free=0) == 7


def test_blocks_from_bytes() -> None:
    """A block takes 16 tokens of 10 bytes."""
    assert blocks(kv_cache_memory_bytes=160, free=0) == 1
    assert blocks(kv_cache_memory_bytes=3 * 160 - 1, free=0) == 2
    with pytest.raises(UsageError, match="kv_cache_memory_bytes=159 does not hold one block of 160 bytes"):
        blocks(kv_cache_memory_bytes=159)


def test_blocks_from_memory_hold_every_request_in_full_or_what_there_is() -> None:
    """100 tokens are 7 blocks a request."""
    assert blocks(max_num_seqs=3) == 21
    assert blocks(max_num_seqs=3, free=10 * 160 + 159) == 10
    with pytest.raises(WorkbenchError, match="one block takes"):
        blocks(free=159)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_kv_blocks": 7}, "num_kv_blocks=7 × 160 bytes is a KV pool of 0 MB and 0 MB"),
        ({"kv_cache_memory_bytes": 7 * 160 + 159}, "kv_cache_memory_bytes=1279 is a KV pool of"),
    ],
)
def test_a_pool_that_was_asked_for_and_is_larger_than_memory_is_refused(options: dict[str, int], told: str) -> None:
    assert blocks(memory=7 * 160, **options) == 7
    with pytest.raises(UsageError, match=f"{told}.* of memory are free: lower it, or leave it out"):
        blocks(memory=7 * 160 - 1, **options)
    assert blocks(memory=None, **options) == 7, "a simulated chip's pool takes no memory here"


def test_a_pool_sized_from_memory_stays_within_what_books_are_kept_for() -> None:
    assert blocks(free=10**30, max_num_seqs=2**40) == MAX_KV_BLOCKS


def test_a_cpu_spends_a_quarter_of_free_memory_and_at_most_two_gib() -> None:
    assert cpu_pool_bytes(4000) == 1000
    assert cpu_pool_bytes(1 << 50) == CPU_POOL_LIMIT == 2 * 1024**3


def test_both_sizes_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="num_kv_blocks=1 and kv_cache_memory_bytes=9 both size the KV pool"):
        EngineConfig(num_kv_blocks=1, kv_cache_memory_bytes=9)
