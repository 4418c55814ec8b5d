"""The machine's ceilings: what the measurements compute, and when a kept one is used. No speed is asserted."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workbench.attention.registry import BACKENDS
from workbench.cli import main
from workbench.errors import UsageError
from workbench.machine import busy_seconds
from workbench.measure import hardware as module
from workbench.measure.hardware import Hardware, hardware, matmul_flops, measure, read_bandwidth
from workbench.measure.timing import Comparison, Timing

CPU = torch.device("cpu")
MIB = 1024**2


def test_a_reader_reads_every_byte_once_and_the_faster_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, torch.Tensor] = {}

    def compare(readers: dict[str, Any], **options: Any) -> Comparison:
        seen.update({name: reader() for name, reader in readers.items()})
        assert options["device"] == CPU and options["repeats"] == 3
        times = [(4.0, 9.0, 5.0), (2.0, 1.0, 4.0)]
        return Comparison({name: Timing(seconds) for name, seconds in zip(readers, times, strict=True)})

    monkeypatch.setattr(module, "compare", compare)
    assert read_bandwidth(CPU, 8 * MIB, repeats=3) == 8 * MIB / 2.0
    rows = 8 * MIB // (4 * module.ROW)
    assert len(seen) == 2
    for name, sums in seen.items():
        assert torch.equal(sums, torch.full((rows,), float(module.ROW))), f"{name} left something out"


def test_the_buffer_is_larger_than_all_caches_and_smaller_than_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_memory", lambda: 64 * 1024 * MIB)
    monkeypatch.setattr(module, "_last_level_caches", lambda: 32 * MIB)
    assert module._buffer_bytes(CPU) == 512 * MIB
    monkeypatch.setattr(module, "_last_level_caches", lambda: 1152 * MIB)
    assert module._buffer_bytes(CPU) == 4 * 1152 * MIB
    monkeypatch.setattr(module, "free_memory", lambda: 1024 * MIB)
    assert module._buffer_bytes(CPU) == 256 * MIB


def test_matrices_grow_until_a_product_takes_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    edges: list[int] = []

    def time_call(product: Any, **options: Any) -> Timing:
        out = product()
        edges.append(len(out))
        rate = {torch.float32: 1e10, torch.bfloat16: 4e10, torch.int32: 5e7}[out.dtype]
        return Timing((2 * len(out) ** 3 / rate,))

    monkeypatch.setattr(module, "time_call", time_call)
    monkeypatch.setattr(module, "SMALLEST", 8)
    monkeypatch.setattr(module, "LARGEST", 64)
    mm = torch.mm

    def no_halves(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype == torch.float16:
            raise RuntimeError("not implemented for 'Half'")
        return mm(a, b)

    monkeypatch.setattr(torch, "mm", no_halves)
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: mm(a.int(), b.int()))
    rates = matmul_flops(CPU, seconds=2e-5)
    assert rates == pytest.approx({"float32": 1e10, "bfloat16": 4e10, "int8": 5e7})
    # 2 · 32³ take 6.6 µs at 10 GFLOP/s, and eight times that is too long; four times as fast, 64 is short enough.
    assert edges == [8, 16, 32, 32, *[8, 16, 32, 64], *[8, 8]]


def test_a_real_measurement_fills_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_buffer_bytes", lambda device: 4 * MIB)
    monkeypatch.setattr(module, "SMALLEST", 32)
    monkeypatch.setattr(module, "LARGEST", 32)
    found = measure(CPU)
    assert found.device == "cpu" and found.name and found.capability and found.sms is None
    assert found.memory_bytes > 2**28 and found.threads == torch.get_num_threads()
    assert found.read_bandwidth > 0 and {"float32", "bfloat16"} <= set(found.matmul_flops)
    assert all(rate > 0 for rate in found.matmul_flops.values())
    assert found.measured_at == found.provenance["date"]
    assert Hardware(**json.loads(json.dumps(asdict(found)))) == found, "it must survive being kept"


# -- what is kept -----------------------------------------------------------------------------------------------------

MADE = Hardware("cpu", "chip", "AVX2", 2**34, None, 2e10, {"float32": 1e11}, 2, "2026-01-01T00:00:00", {"torch": "2"})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Hardware]:
    """What was measured, in a home of its own: each measurement finds another bandwidth."""
    done: list[Hardware] = []

    def measure(device: torch.device) -> Hardware:
        done.append(replace(MADE, read_bandwidth=1e10 + len(done)))
        return done[-1]

    monkeypatch.setattr(module, "measure", measure)
    monkeypatch.setattr(module, "_measured_here", set())
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WORKBENCH_DEVICE", raising=False)
    return done


def kept_file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "hardware.json"


def test_it_is_measured_once_and_then_kept(measured: list[Hardware], tmp_path: Path) -> None:
    assert hardware("cpu") == hardware("cpu") == measured[0] and len(measured) == 1
    assert [path.name for path in kept_file(tmp_path).parent.iterdir()] == ["hardware.json"], "nothing half-written"
    assert hardware("cpu", refresh=True) == measured[1] == hardware("cpu") and len(measured) == 2


@pytest.mark.parametrize(("later", "expected"), [(0.05, (1e10, 0.05)), (0.6, (3e10, 0.4))], ids=["quiet", "busy"])
def test_what_a_busy_machine_gave_is_measured_again_once_in_each_process(
    measured: list[Hardware],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    later: float,
    expected: tuple[float, float],
) -> None:
    found = iter([replace(MADE, read_bandwidth=3e10, others=0.4), replace(MADE, read_bandwidth=1e10, others=later)])
    monkeypatch.setattr(module, "measure", lambda device: next(found))
    first = hardware("cpu")
    assert hardware("cpu") == first and "40% of the processors" in first.note, "once is enough for this process"
    monkeypatch.setattr(module, "_measured_here", set())
    second = hardware("cpu")
    # A quiet measurement stands for itself; of two busy ones the higher rates count.
    assert (second.read_bandwidth, second.others) == expected and hardware("cpu") == second
    assert second.matmul_flops == MADE.matmul_flops and (second.note == "") == (later < 0.1)


@pytest.mark.parametrize(("busy", "others"), [((10.0, 10.5), 0.0), ((10.0, 13.5), 0.75), ((None, None), 0.0)])
def test_the_share_of_other_programs_is_what_this_one_did_not_take(
    monkeypatch: pytest.MonkeyPatch, busy: tuple[float | None, ...], others: float
) -> None:
    ticks, own, worked = iter([100.0, 102.0]), iter([7.0, 7.5]), iter(busy)
    monkeypatch.setattr(module, "read_bandwidth", lambda device: 1e10)
    monkeypatch.setattr(module, "matmul_flops", lambda device: {"float32": 1e11})
    monkeypatch.setattr(module, "num_cpus", lambda: 2)
    monkeypatch.setattr(module, "busy_seconds", lambda: next(worked))
    monkeypatch.setattr(
        module, "time", SimpleNamespace(perf_counter=lambda: next(ticks), process_time=lambda: next(own))
    )
    assert measure(CPU).others == others


def test_the_system_counts_the_work_of_this_process() -> None:
    before, own = busy_seconds(), time.process_time()
    if before is None:
        pytest.skip("this system does not tell how long its processors worked")
    while time.process_time() - own < 0.3:
        pass
    assert busy_seconds() - before > 0.2


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (torch, "get_num_threads", lambda: 77),
        (torch, "__version__", "9.9.9"),
        (module, "cpu_name", lambda: "another chip"),
        (module, "num_cpus", lambda: 77),
        (module, "total_memory", lambda: 77 * 2**30),
    ],
    ids=["threads", "torch", "chip", "processors", "memory"],
)
def test_what_was_measured_elsewhere_is_not_used_and_not_lost(
    measured: list[Hardware], monkeypatch: pytest.MonkeyPatch, where: Any, name: str, value: Any
) -> None:
    hardware("cpu")
    with monkeypatch.context() as patch:
        patch.setattr(where, name, value)
        assert hardware("cpu") == measured[1] == hardware("cpu")
    assert hardware("cpu") == measured[0] and len(measured) == 2


def damage(change: Any) -> Any:
    def apply(text: str) -> str:
        kept = json.loads(text)
        (entry,) = kept["measured"].values()
        change(kept, entry)
        return json.dumps(kept)

    return apply


@pytest.mark.parametrize(
    "damaged",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "\x00\x00",
        damage(lambda kept, entry: kept.update(schema_version=0)),
        damage(lambda kept, entry: kept.update(measured=[1])),
        damage(lambda kept, entry: entry.pop("threads")),
        damage(lambda kept, entry: entry.update(surplus=1)),
        damage(lambda kept, entry: entry.update(read_bandwidth="fast")),
        damage(lambda kept, entry: entry.update(read_bandwidth=0.0)),
        damage(lambda kept, entry: entry.update(matmul_flops={})),
        damage(lambda kept, entry: entry.update(matmul_flops={"float32": float("nan")})),
    ],
)
def test_a_damaged_file_is_measured_anew(measured: list[Hardware], tmp_path: Path, damaged: Any) -> None:
    hardware("cpu")
    file = kept_file(tmp_path)
    file.write_text(damaged(file.read_text(encoding="utf-8")), encoding="utf-8")
    assert hardware("cpu") == measured[1] == hardware("cpu") and len(measured) == 2


def test_a_home_that_cannot_be_written_costs_only_the_next_measurement(
    measured: list[Hardware], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "a file"))
    assert hardware("cpu") == measured[0] and hardware("cpu") == measured[1]


def test_devices_that_are_not_there_are_refused(measured: list[Hardware], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="'toaster' is not known"):
        hardware("toaster")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="sees no GPU"):
        hardware("cuda")
    monkeypatch.setenv("WORKBENCH_DEVICE", "cuda")
    with pytest.raises(UsageError, match="sees no GPU"):
        hardware()
    assert measured == []


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_or_json(measured: list[Hardware], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "hardware"]) == 0
    text = capsys.readouterr().out
    for shown in ("cpu: chip", "AVX2", "16.0 GiB", "10.0 GB/s", "multiplies float32", "100.0 GFLOP/s", "2026-01-01"):
        assert shown in text
    assert main(["info", "hardware", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == asdict(measured[0])
    assert len(measured) == 1 and main(["info", "hardware", "--refresh"]) == 0 and len(measured) == 2


def test_the_command_lists_backends_and_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "attention", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["backends"]) >= set(BACKENDS) and found["auto"] in ("cpu", "sdpa")
    assert main(["info", "kernels", "--json"]) == 0
    makers = json.loads(capsys.readouterr().out)
    assert "paged_attention" in makers and all("reference" in names for names in makers.values())
    assert main(["info", "attention"]) == 0 and main(["info", "kernels"]) == 0
    text = capsys.readouterr().out
    assert "sdpa" in text and "rms_norm" in text


@pytest.mark.gpu
def test_a_gpu_is_measured_by_its_own_clock() -> None:
    found = measure(torch.device("cuda"))
    assert found.device == "cuda" and found.sms and "." in found.capability
    assert found.read_bandwidth > 50e9
    assert found.matmul_flops["bfloat16"] > found.matmul_flops["float32"]
