"""`python -m kernels.inspect` on kernels made for it: it compiles without a GPU and finds every seeded fault.

Everything runs in processes of its own, so these tests do not care whether Triton interprets here. They need no GPU and
pass under Triton 3.6 and 3.9. Those that compile more than one kernel are marked slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels import inspect as inspector

ROOT = Path(__file__).parents[3]
ON_PURPOSE = Path(__file__).with_name("on_purpose.py")
UPDATED = ["--table", "table.json", "--update", "--json"]


def command(home: Path, *arguments: str, source: Path = ON_PURPOSE, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"WORKBENCH_HOME": str(home), "PYTHONPATH": str(ROOT), **more}
    line = [sys.executable, "-m", "kernels.inspect", *arguments, "--module", str(source)]
    return subprocess.run(line, env=environment, cwd=home, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """One run that compiles all kernels and writes a table: its report and the folder."""
    home = tmp_path_factory.mktemp("inspect")
    done = command(home, *UPDATED, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    records = {(one["name"], one["arch"]): one for one in report["records"]}
    return SimpleNamespace(home=home, report=report, records=records)


def faults(first, name: str, arch: str = "sm_90") -> str:
    return "; ".join(first.records[f"on_purpose.{name}", arch]["faults"])


def test_one_kernel_compiled_from_a_process_that_interprets(tmp_path):
    done = command(tmp_path, "on_purpose.sound", "--arch", "sm_90", "--json", TRITON_INTERPRET="1")
    report = json.loads(done.stdout)
    assert report["compiled"] == 1 and report["processor_seconds"] > 0
    (record,) = report["records"]
    assert record["matrix"].keys() == {"HGMMA"} and record["faults"] == []


@pytest.mark.parametrize("arguments", [["no_such"], ["on_purpose.sound", "sound"]])
def test_a_name_that_fits_nothing_is_refused(arguments):
    found = [SimpleNamespace(name="on_purpose.sound"), SimpleNamespace(name="on_purpose.spills")]
    with pytest.raises(ValueError, match=f"nothing is called {arguments[-1]}; there are on_purpose"):
        inspector._choose(found, arguments, ["sm_90"])


def test_names_are_modules_full_names_or_patterns():
    variant = SimpleNamespace(runs_on=lambda: ("sm_80", "sm_90"))
    found = [SimpleNamespace(name=name, variant=variant) for name in ("norm.d64", "norm.d128", "normal.d64")]

    def chosen(*names: str) -> list[str]:
        return [job.found.name for job in inspector._choose(found, names, ["sm_90", "sm_100"])]

    assert chosen() == ["norm.d64", "norm.d128", "normal.d64"]
    assert chosen("norm") == ["norm.d64", "norm.d128"]
    assert chosen("*d64", "norm.d64") == ["norm.d64", "normal.d64"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sound_kernel_has_each_chips_own_matrix_instruction(first):
    names = {arch: list(first.records["on_purpose.sound", arch]["matrix"]) for arch in ("sm_80", "sm_90", "sm_100")}
    assert names["sm_80"] == ["HMMA"]
    assert names["sm_90"] == ["HGMMA"]
    assert names["sm_100"] == ["UTCHMMA"]
    for arch in names:
        record = first.records["on_purpose.sound", arch]
        assert record["faults"] == []
        assert record["copies"].keys() == {"LDGSTS"}
        assert record["warps"] >= 8 and 32 < record["registers"] <= 255
        assert record["occupancy"]["blocks"] >= 1
        assert "local_bytes" not in record


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_descriptor_is_loaded_by_tma(first):
    for arch in ("sm_90", "sm_100"):
        assert first.records["on_purpose.descriptor", arch]["copies"]["UTMALDG"] >= 1
        assert faults(first, "descriptor", arch) == ""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_seeded_fault_is_found(first):
    assert faults(first, "spills").startswith("spills: ")
    assert first.records["on_purpose.spills", "sm_90"]["local_bytes"] > 0
    assert first.records["on_purpose.spills", "sm_90"]["local_accesses"] > 0
    assert "wants wgmma, and the code has HMMA" in faults(first, "no_wgmma")
    assert faults(first, "too_much_shared").startswith("shared memory: ")
    assert first.records["on_purpose.too_much_shared", "sm_90"]["occupancy"]["blocks"] == 0
    assert "wants ldg.128" in faults(first, "unaligned", "sm_80")
    assert "wants cp.async" in faults(first, "unaligned", "sm_80")
    assert faults(first, "broken", "sm_80").startswith("does not compile: ")
    assert len(first.report["faults"]) == 6, first.report["faults"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_check_compiles_nothing_again_and_finds_the_same_faults_and_a_changed_table(first):
    table = first.home / "table.json"
    agreed = json.loads(table.read_text(encoding="utf-8"))
    changed = json.loads(table.read_text(encoding="utf-8"))
    row = changed["on_purpose.sound"]["sm_90"]
    was = row["registers"]
    row["registers"] = was - 1
    changed["on_purpose.spills"]["sm_90"]["reason"] = "on purpose"
    changed["on_purpose.gone"] = {"sm_80": agreed["on_purpose.sound"]["sm_80"]}
    del changed["on_purpose.descriptor"]["sm_100"]
    (first.home / "changed.json").write_text(json.dumps(changed), encoding="utf-8")
    done = command(first.home, "--check", "--json", "--table", "changed.json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    # What does not compile is tried again: only figures are kept.
    assert (report["cached"], report["compiled"]) == (len(first.records) - 1, 1)
    said = "\n".join(report["faults"])
    assert f"on_purpose.sound sm_90: registers {was - 1} → {was}" in said
    assert "on_purpose.gone sm_80: in the table, but no longer launched" in said
    assert "on_purpose.descriptor sm_100: not in the table" in said
    assert "spills" not in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sound_kernel_passes_the_check_and_is_printed(first):
    done = command(first.home, "on_purpose.sound", "--check", "--table", "table.json", "--arch", "sm_80", "sm_90")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Triton 3.")
    assert [line.split()[:2] for line in lines[2:4]] == [["on_purpose.sound", "sm_80"], ["on_purpose.sound", "sm_90"]]
    assert "HGMMA:" in lines[3] and "LDGSTS:" in lines[3]
    assert lines[-1] == "2 kernels: 0 compiled (0 s of processor time), 2 as kept"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_changed_kernel_is_compiled_again(first, tmp_path):
    source = tmp_path / "on_purpose.py"
    # The helper that the kernel calls, not the kernel itself.
    source.write_text(ON_PURPOSE.read_text(encoding="utf-8").replace("x * 0.5", "x * 0.25"), encoding="utf-8")
    done = command(first.home, "on_purpose.sound", "--json", "--arch", "sm_80", source=source)
    assert json.loads(done.stdout)["compiled"] == 1, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_notebook_asks_for_figures_and_machine_code(first, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(first.home))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (record,) = inspector.inspect(["on_purpose.sound"], ["sm_90"], [str(ON_PURPOSE)])
    assert record["registers"] == first.records["on_purpose.sound", "sm_90"]["registers"]
    assert "HGMMA" in inspector.sass("on_purpose.sound", "sm_90", [str(ON_PURPOSE)])


@pytest.mark.timeout(300)
def test_a_reader_that_goes_away_is_no_error(tmp_path):
    line = [sys.executable, "-m", "kernels.inspect", "on_purpose.sound", "--sass", "--arch", "sm_80"]
    environment = os.environ | {"WORKBENCH_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [*line, "--module", str(ON_PURPOSE)], env=environment, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        process.stdout.close()
        said = process.stderr.read()
    assert said == ""


@pytest.mark.parametrize(
    "arguments",
    [["--arch", "sm_75"], ["--workers", "0"], ["--update"], ["--table", "no_such.json", "x"], ["--sass", "--json"]],
)
def test_wrong_usage_is_refused(arguments, capsys, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(inspector.find, "find", lambda wanted: [])
    with pytest.raises(SystemExit) as ended:
        sys.exit(inspector.main([*arguments, "--module", "m"]))
    assert ended.value.code == 2
    assert capsys.readouterr().err
