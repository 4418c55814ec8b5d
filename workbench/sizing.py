"""How many tokens a request may have and how many KV blocks the pool holds, from the model and the memory there is."""

from __future__ import annotations

from workbench.config import MAX_KV_BLOCKS, EngineConfig
from workbench.errors import UsageError, WorkbenchError

CPU_POOL_LIMIT = 2 << 30
"""Most bytes that the pool takes on a CPU unless told otherwise."""


def resolve_max_model_len(config: EngineConfig, model_limit: int) -> int:
    """``max_model_len``, or the model's own limit. Raises UsageError beyond that limit."""
    wanted = config.max_model_len or model_limit
    if wanted > model_limit:
        raise UsageError(
            f"max_model_len={wanted} is beyond the {model_limit} positions this model was made for: lower it"
        )
    return wanted


def resolve_num_kv_blocks(
    config: EngineConfig, max_model_len: int, bytes_per_token: int, free_bytes: int, memory_bytes: int | None = None
) -> int:
    """KV blocks for the pool.

    ``num_kv_blocks`` as given, or as many as ``kv_cache_memory_bytes`` hold, or enough for ``max_num_seqs`` requests of
    full length within ``free_bytes`` (what the caller will spend on the pool). ``memory_bytes``: what could be
    allocated at all; None where nothing will be. Raises when not one block fits, and UsageError for a pool that was
    asked for and is larger than memory.
    """
    block_bytes = bytes_per_token * config.block_size
    if config.num_kv_blocks is not None:
        told = f"num_kv_blocks={config.num_kv_blocks} × {block_bytes:,} bytes"
        _require_room(told, config.num_kv_blocks * block_bytes, memory_bytes)
        return config.num_kv_blocks
    if config.kv_cache_memory_bytes is not None:
        blocks = config.kv_cache_memory_bytes // block_bytes
        if blocks < 1:
            raise UsageError(
                f"kv_cache_memory_bytes={config.kv_cache_memory_bytes} does not hold one block of {block_bytes} bytes: "
                "raise it or lower block_size"
            )
        _require_room(f"kv_cache_memory_bytes={config.kv_cache_memory_bytes}", blocks * block_bytes, memory_bytes)
        return blocks
    enough = config.max_num_seqs * -(-max_model_len // config.block_size)
    blocks = min(enough, free_bytes // block_bytes, MAX_KV_BLOCKS)
    if blocks < 1:
        raise WorkbenchError(
            f"there are {free_bytes / 1e6:.0f} MB for the KV pool and one block takes {block_bytes / 1e6:.1f} MB: free "
            "some memory or choose a smaller model"
        )
    return blocks


def _require_room(told: str, pool_bytes: int, memory_bytes: int | None) -> None:
    if memory_bytes is not None and pool_bytes > memory_bytes:
        raise UsageError(
            f"{told} is a KV pool of {pool_bytes / 1e6:,.0f} MB and {memory_bytes / 1e6:,.0f} MB of memory are free: "
            "lower it, or leave it out for a pool that fits"
        )


def resolve_num_host_kv_blocks(config: EngineConfig, num_kv_blocks: int, bytes_per_token: int) -> int | None:
    """KV blocks in host memory: as given, or what ``kv_offload_host_gib`` holds, or as many as the pool has.

    None without ``preemption_mode="swap"``. Raises UsageError when not one block fits.
    """
    if config.preemption_mode != "swap" or config.num_host_kv_blocks is not None:
        return config.num_host_kv_blocks
    if config.kv_offload_host_gib == 0:
        return num_kv_blocks
    block_bytes = bytes_per_token * config.block_size
    blocks = int(config.kv_offload_host_gib * (1 << 30)) // block_bytes
    if blocks < 1:
        raise UsageError(
            f"kv_offload_host_gib={config.kv_offload_host_gib} does not hold one block of {block_bytes} bytes: raise it"
        )
    return blocks


def cpu_pool_bytes(free_bytes: int) -> int:
    """What a CPU run spends on its pool: a quarter of free memory, at most 2 GiB."""
    return min(CPU_POOL_LIMIT, free_bytes // 4)
