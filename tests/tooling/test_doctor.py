"""The doctor names what is wrong and what to do, also where torch is missing. Each fault is seeded."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench import doctor
from workbench.errors import WorkbenchError

ROOT = Path(__file__).parents[2]
NAMES = [
    "python",
    "torch",
    "triton",
    "device",
    "capability",
    "compiler",
    "kernels",
    "memory",
    "disk",
    "model",
    "jupyter",
    "canary",
]


def versions(monkeypatch, **changed):
    """Pretends that distributions have other versions; None = not installed."""
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: changed[name] if name in changed else real(name))


@pytest.fixture
def quick(monkeypatch):
    """Every check runs, but the canary's process is replaced by its right answer."""
    answer = '{"ok": true, "index": 999, "got": 2997.0, "expected": 2997.0, "mode": "interpreted"}'
    monkeypatch.setattr(doctor, "_has_cuda", lambda torch: False)
    real = doctor._run

    def run(command, seconds, env=None):
        if "kernels.triton.canary" in command:
            assert env["TRITON_INTERPRET"] == "1"
            return subprocess.CompletedProcess(command, 0, answer, "")
        return real(command, seconds, env)

    monkeypatch.setattr(doctor, "_run", run)


def by_name(checks):
    return {check.name: check for check in checks}


def test_this_environment_is_healthy_and_the_json_is_as_documented(quick, capsys):
    assert doctor.main(args_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert [check["name"] for check in answer["checks"]] == NAMES
    for check in answer["checks"]:
        assert set(check) == {"name", "ok", "essential", "value", "remedy"}
        assert check["value"]
        assert bool(check["remedy"]) != check["ok"], check


def test_missing_torch_is_said_and_the_doctor_still_ends(quick, monkeypatch, capsys):
    versions(monkeypatch, torch=None)
    monkeypatch.setattr(doctor, "_import", lambda name: None)
    checks = by_name(doctor.run_checks())
    assert not checks["torch"].ok and checks["torch"].essential
    assert checks["torch"].value == "not installed" and "make setup" in checks["torch"].remedy
    assert "not run" in checks["canary"].value and not checks["canary"].essential
    assert doctor.main(args_json=False) == 1
    assert "To be mended first: torch" in capsys.readouterr().out


def test_a_bare_python_without_any_package_gets_the_same_remedy():
    """-S leaves out site-packages: no torch, no Jupyter, nothing but the standard library and the tree."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from workbench import doctor; sys.exit(doctor.main(True))"
    done = subprocess.run([sys.executable, "-S", "-c", code, str(ROOT)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    checks = {check["name"]: check for check in answer["checks"]}
    assert answer["ok"] is False
    assert [checks[name]["value"] for name in ("torch", "triton")] == ["not installed"] * 2
    assert "make setup" in checks["torch"]["remedy"]
    assert "jupyterlab missing" in checks["jupyter"]["value"]


@pytest.mark.parametrize(
    ("ipywidgets", "jupyterlab_widgets"), [("7.8.5", "3.0.17"), ("8.1.9", "1.1.11"), ("9.0.0", "3.0.17")]
)
def test_mismatched_widget_halves_fail_with_the_pair_to_install(quick, monkeypatch, ipywidgets, jupyterlab_widgets):
    versions(monkeypatch, ipywidgets=ipywidgets, jupyterlab_widgets=jupyterlab_widgets)
    check = doctor._jupyter()
    assert not check.ok and check.essential
    assert ipywidgets in check.value and jupyterlab_widgets in check.value
    assert "ipywidgets>=8.1,<9" in check.remedy and "jupyterlab_widgets>=3,<4" in check.remedy


def test_absent_jupyter_only_warns(quick, monkeypatch):
    versions(monkeypatch, jupyterlab=None)
    check = doctor._jupyter()
    assert not check.ok and not check.essential and "install jupyterlab" in check.remedy


def test_absent_model_names_the_command_that_fetches_it(quick, monkeypatch):
    def locate(name):
        raise WorkbenchError(f"{name} is not in the cache")

    real = importlib.import_module
    monkeypatch.setattr(
        doctor.importlib,
        "import_module",
        lambda name: SimpleNamespace(locate=locate) if name == "workbench.model.store" else real(name),
    )
    check = doctor._model()
    assert not check.ok and check.essential
    assert "workbench model fetch smollm2-135m" in check.remedy


def test_the_model_that_is_looked_for_is_the_one_the_environment_names(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("WORKBENCH_MODEL", str(tmp_path))
    assert doctor._model().ok and doctor._model().value == f"{tmp_path} ({tmp_path.name})"
    for name, words in (("no-such-model", "no model 'no-such-model'"), ("", "model='' is empty")):
        monkeypatch.setenv("WORKBENCH_MODEL", name)
        check = doctor._model()
        assert not check.ok and check.essential and words in check.value and "WORKBENCH_MODEL" in check.remedy
    monkeypatch.setenv("WORKBENCH_MODEL", "someone/unheard-of")
    assert "workbench model fetch someone/unheard-of" in doctor._model().remedy


def test_old_versions_are_refused(monkeypatch):
    versions(monkeypatch, torch="2.10.1+cpu", triton="3.5.1")
    torch = SimpleNamespace(version=SimpleNamespace(cuda=None))
    assert not doctor._torch(torch).ok and "2.11" in doctor._torch(torch).remedy
    assert not doctor._triton(cuda=False).ok and "3.6" in doctor._triton(cuda=False).remedy
    versions(monkeypatch, torch="2.11.0", triton="3.10.0")
    assert doctor._torch(torch).ok and doctor._triton(cuda=False).ok


@pytest.mark.parametrize(("version", "ok"), [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False)])
def test_python_range(monkeypatch, version, ok):
    monkeypatch.setattr(doctor.sys, "version_info", (*version, 0))
    check = doctor._python()
    assert check.ok is ok and check.essential
    assert ("untested" in check.value) == (version == (3, 13))


def test_a_gpu_that_torch_does_not_see_is_a_warning_with_the_cause(monkeypatch):
    monkeypatch.setattr(doctor, "_has_nvidia_driver", lambda: True)
    monkeypatch.delenv("WORKBENCH_DEVICE", raising=False)
    check = doctor._device(SimpleNamespace(version=SimpleNamespace(cuda=None)), cuda=False)
    assert not check.ok and not check.essential and "CPU build" in check.remedy
    check = doctor._device(SimpleNamespace(version=SimpleNamespace(cuda="13.0")), cuda=False)
    assert "driver" in check.remedy
    monkeypatch.setenv("WORKBENCH_DEVICE", "cuda")
    check = doctor._device(None, cuda=False)
    assert not check.ok and check.essential and "WORKBENCH_DEVICE" in check.remedy


def test_compilers(monkeypatch, tmp_path):
    assert doctor._compiler(cuda=False).ok
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    check = doctor._compiler(cuda=True)
    assert not check.ok and check.essential and "does not compile" in check.value and "g++" in check.remedy
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert "no C compiler" in doctor._compiler(cuda=False).value


@pytest.fixture
def build(monkeypatch):
    """The kernels' build, asked anew: what it found is kept otherwise."""
    from kernels.cpu import build

    monkeypatch.setattr(build, "_library", build._library.__wrapped__)
    return build


@pytest.mark.parametrize("name", ["avx2", "portable"])
def test_the_doctor_says_which_kernels_run(monkeypatch, build, name):
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", name)
    monkeypatch.setattr(build, "_build", lambda: SimpleNamespace())
    check = doctor._kernels(SimpleNamespace())
    assert check.ok and not check.essential and not check.remedy and f"{name} build" in check.value


def test_kernels_that_do_not_run_are_a_warning_with_the_cause(monkeypatch, build, tmp_path):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    for name in ("none", "sse9"):
        monkeypatch.setenv("WORKBENCH_CPU_KERNELS", name)
        check = doctor._kernels(SimpleNamespace())
        assert not check.ok and not check.essential
        assert name in check.value and check.remedy.startswith("unset WORKBENCH_CPU_KERNELS")
    monkeypatch.delenv("WORKBENCH_CPU_KERNELS")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    check = doctor._kernels(SimpleNamespace())
    assert not check.ok and "no C++ compiler found" in check.value and "apt install g++" in check.remedy
    assert not doctor._kernels(None).ok and "torch" in doctor._kernels(None).value


@pytest.mark.parametrize(("gib", "ok", "essential"), [(0.5, False, True), (2, False, False), (8, True, True)])
def test_memory(monkeypatch, gib, ok, essential):
    monkeypatch.setattr(doctor, "free_memory", lambda: int(gib * doctor.GIB))
    check = doctor._memory()
    assert (check.ok, check.essential) == (ok, essential)
    assert f"{gib:.1f} GiB" in check.value


def test_little_disk_warns(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=doctor.GIB))
    check = doctor._disk()
    assert not check.ok and not check.essential and "WORKBENCH_HOME" in check.remedy


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"ok": false, "index": 7, "got": 20.0, "expected": 21.0, "mode": "%s"}', "value 7 is 20, not 21"),
        ("", "boom"),
        (None, "no answer in"),
    ],
)
def test_a_canary_that_sings_wrongly_is_essential_on_a_gpu_only(monkeypatch, answer, said, cuda):
    def run(command, seconds, env=None):
        assert ("TRITON_INTERPRET" in env) != cuda
        text = answer % ("compiled" if cuda else "interpreted") if answer else answer
        return None if answer is None else subprocess.CompletedProcess(command, 1, text, "Traceback\nboom")

    monkeypatch.setattr(doctor, "_run", run)
    check = doctor._canary(SimpleNamespace(), cuda)
    assert not check.ok and check.essential is cuda and said in check.value and check.remedy


def test_a_check_that_breaks_does_not_break_the_doctor(quick, monkeypatch):
    monkeypatch.setattr(doctor, "_memory", lambda: 1 // 0)
    check = by_name(doctor.run_checks())["memory"]
    assert not check.ok and not check.essential and "ZeroDivisionError" in check.value and check.remedy


def test_the_canary_itself_catches_a_wrong_sum_and_a_missing_mask(tmp_path):
    """The real kernel, interpreted, beside two copies with one seeded bug each."""
    source = (ROOT / "kernels/triton/canary.py").read_text(encoding="utf-8")
    copies = {
        "right": source,
        "wrong_sum": source.replace("x + y", "x - y"),
        "no_mask": source.replace("x + y, mask=inside", "x + y"),
    }
    assert len(set(copies.values())) == 3
    for name, text in copies.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    code = (
        "import json, right, wrong_sum, no_mask as m\nprint(json.dumps([c.run('cpu') for c in (right, wrong_sum, m)]))"
    )
    env = {"TRITON_INTERPRET": "1", "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    right, wrong_sum, no_mask = (
        json.loads(done.stdout or "[0, 0, 0]") if done.returncode == 0 else pytest.fail(done.stderr)
    )
    assert right == {"ok": True, "index": 999, "got": 2997.0, "expected": 2997.0, "mode": "interpreted"}
    assert not wrong_sum["ok"] and wrong_sum["index"] == 1
    assert not no_mask["ok"] and no_mask["index"] == 1000
