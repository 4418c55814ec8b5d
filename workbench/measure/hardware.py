"""What this machine can do: how fast it reads memory and how fast it multiplies matrices. Measured once, then kept.

Both are ceilings: no step can read or multiply faster, whatever its code. They are measured and not looked up, because
what a process gets depends on threads, neighbours and cooling, and not only on the name of a chip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from workbench.config import EngineConfig
from workbench.llm import resolve_device
from workbench.machine import busy_seconds, cpu_name, free_memory, num_cpus, total_memory
from workbench.measure.ceilings import MIB, Hardware, kept_file, key_start, read_kept, restored, write_kept
from workbench.measure.provenance import provenance
from workbench.measure.timing import compare, time_call

CPU_BUFFER, GPU_BUFFER = 512 * MIB, 4096 * MIB
ROW = 4096
"""Numbers in a row of the buffer that is read: results are one for each row, so hardly anything is written."""
MATMUL_SECONDS = 0.2
"""About the longest that one product of matrices may take while it is measured."""
SMALLEST, LARGEST = 256, 8192
"""Edges of the square matrices. The largest keeps any machine of today busy for longer than a launch takes."""


def hardware(device: str = "auto", refresh: bool = False) -> Hardware:
    """This machine's ceilings, measured on first use (a few seconds) and kept in ``WORKBENCH_HOME/hardware.json``.

    ``device``: ``auto`` is what `LLM` would take. Kept for each device, number of threads and version of torch; what
    another machine left there is not used, and a damaged file is measured anew. So is, once in each process, what was
    measured while other programs ran; the higher rates count then. ``refresh`` measures again and forgets the old
    rates. Raises UsageError for a device that is not known or not there.
    """
    config = EngineConfig() if device == "auto" else EngineConfig(device=device)
    chosen = resolve_device(config.device)
    file, key = kept_file(), _key(chosen)
    kept = read_kept(file)
    found = None if refresh else restored(kept.get(key))
    if found is not None and (not found.doubtful or (file, key) in _measured_here):
        return found
    measured = measure(chosen)
    if found is not None and measured.doubtful:
        measured = _better(measured, found)
    _measured_here.add((file, key))
    _write(file, kept | {key: asdict(measured)})
    return measured


_measured_here: set[tuple[Path, str]] = set()
"""What this process has measured and kept: on a machine that is never quiet, once is enough."""


def _better(one: Hardware, other: Hardware) -> Hardware:
    """The higher rate of each kind: no program makes a machine faster than it is."""
    rates = {name: max(rate, other.matmul_flops.get(name, rate)) for name, rate in one.matmul_flops.items()}
    return replace(
        one,
        read_bandwidth=max(one.read_bandwidth, other.read_bandwidth),
        matmul_flops=rates,
        others=min(one.others, other.others),
    )


def measure(device: torch.device) -> Hardware:
    """Measures now, whatever is kept."""
    began, mine, busy = time.perf_counter(), time.process_time(), busy_seconds()
    bandwidth, rates = read_bandwidth(device), matmul_flops(device)
    wall, mine, busy_after = time.perf_counter() - began, time.process_time() - mine, busy_seconds()
    known = device.type == "cpu" and busy is not None and busy_after is not None
    others = (busy_after - busy - mine) / (wall * num_cpus()) if known else 0.0
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    origin = provenance(device)
    return Hardware(
        device=device.type,
        name=_name(device),
        capability=f"{gpu.major}.{gpu.minor}" if gpu else str(torch.backends.cpu.get_cpu_capability()),
        memory_bytes=gpu.total_memory if gpu else total_memory(),
        sms=gpu.multi_processor_count if gpu else None,
        read_bandwidth=bandwidth,
        matmul_flops=rates,
        threads=torch.get_num_threads(),
        measured_at=origin["date"],
        provenance=origin,
        others=round(max(0.0, others), 3),
    )


def read_bandwidth(device: torch.device, buffer_bytes: int | None = None, repeats: int = 9) -> float:
    """Bytes per second at which all threads read a buffer far larger than the last cache, from one end to the other.

    Two readers take turns: sums of rows, and a matrix times a vector, as a decode step reads its weights. Both read
    every number once and write one for a row of 4096, so this is a bandwidth of reading; a copy would also write, and
    read what it is about to write. The faster reader's median counts: the slower one was held up by its arithmetic.
    ``buffer_bytes`` is for tests.
    """
    size = buffer_bytes or _buffer_bytes(device)
    # Filled, because memory that was never written is one shared page of zeros, and that stays in the cache.
    matrix = torch.ones(max(1, size // (4 * ROW)), ROW, device=device)
    vector = torch.ones(ROW, device=device)
    readers = {"sums of rows": lambda: matrix.sum(1), "matrix × vector": lambda: torch.mv(matrix, vector)}
    timings = compare(readers, device=device, warmup=2, repeats=repeats).timings
    return matrix.nbytes / min(timing.median for timing in timings.values())


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)


def matmul_flops(
    device: torch.device, seconds: float = MATMUL_SECONDS, dtypes: Sequence[torch.dtype] = DTYPES
) -> dict[str, float]:
    """FLOP/s by dtype of a product of two square matrices, as large as takes about ``seconds``; integers count alike.

    At such sizes a number is used hundreds of times for once that it is read, so memory does not hold the product up.
    float32 is what torch makes of it (on a GPU without TF32, unless that was turned on). What this torch cannot
    multiply on this device is left out.
    """
    rates: dict[str, float] = {}
    for dtype in dtypes:
        try:
            rates[str(dtype).removeprefix("torch.")] = _matmul_rate(dtype, device, seconds)
        except (AttributeError, NotImplementedError, RuntimeError):
            continue
    return rates


def _matmul_rate(dtype: torch.dtype, device: torch.device, seconds: float) -> float:
    edge = SMALLEST
    while edge < LARGEST and 8 * time_call(_product(edge, dtype, device), device=device, repeats=1).median < seconds:
        edge *= 2
    timing = time_call(_product(edge, dtype, device), device=device, warmup=1, repeats=5)
    return float(2 * edge**3 / timing.median)


def _product(edge: int, dtype: torch.dtype, device: torch.device) -> Callable[[], torch.Tensor]:
    numbers = torch.arange(edge * edge, device=device).remainder_(7).view(edge, edge).to(dtype)
    if dtype == torch.int8:
        integer_product, other = torch._int_mm, numbers.clone().t()  # what GPUs want: the second one column by column
        return lambda: integer_product(numbers, other)
    other = numbers.clone()
    return lambda: torch.mm(numbers, other)


def _buffer_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return min(GPU_BUFFER, torch.cuda.mem_get_info(device)[0] // 4)
    return min(max(CPU_BUFFER, 4 * _last_level_caches()), free_memory() // 4)


def _last_level_caches() -> int:
    """Bytes of all third-level caches together; 0 where the system does not tell."""
    sizes: dict[str, int] = {}
    for cache in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index3"):
        try:
            owners, size = ((cache / name).read_text(encoding="utf-8").strip() for name in ("shared_cpu_list", "size"))
            sizes[owners] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return sum(sizes.values())


# -- what was measured before -----------------------------------------------------------------------------------------


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def _key(device: torch.device) -> str:
    """What a measurement is good for: this device, in this machine, with so many threads, by this torch."""
    start = key_start(device.type, _name(device), cpu_name(), num_cpus(), total_memory())
    return f"{start}{torch.get_num_threads()} threads; torch {torch.__version__}"


def _write(file: Path, entries: dict[str, Any]) -> None:
    """A folder that is not ours to write costs only the next measurement."""
    try:
        write_kept(file, entries)
    except OSError:
        return
