"""The doctor: is everything here that the course needs, and what to do where it is not.

Every check is a small function that states a value and, where it is not what it should be, a remedy in words. It all
runs on a bare Python too: torch may be missing, and what could crash or hang runs in a process of its own. An essential
check that fails makes the doctor fail; the others are warnings.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.config import default_model
from workbench.errors import UsageError, WorkbenchError
from workbench.machine import cpu_name, free_memory, num_cpus

TESTED_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 13)
LEAST_TORCH = "2.11"
LEAST_TRITON = "3.6"
GIB = 1024**3
CANARY_SECONDS = 180
INSTALL = "run `make setup` in the project's folder (conda: `conda env update -f environment.yml`)"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    essential: bool
    value: str
    """What was found."""
    remedy: str = ""
    """What to do; empty where nothing is to be done."""


def run_checks(only: Sequence[str] | None = None) -> list[Check]:
    """All checks, or ``only`` those of these names, in the order in which they matter.

    None raises: one that breaks says so in its value.
    """
    torch = _import("torch")
    cuda = os.environ.get("WORKBENCH_DEVICE") != "cpu" and _has_cuda(torch)
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", _python),
        ("torch", lambda: _torch(torch)),
        ("triton", lambda: _triton(cuda)),
        ("device", lambda: _device(torch, cuda)),
        ("capability", lambda: _capability(torch, cuda)),
        ("compiler", lambda: _compiler(cuda)),
        ("kernels", lambda: _kernels(torch)),
        ("memory", _memory),
        ("disk", _disk),
        ("model", _model),
        ("jupyter", _jupyter),
        ("canary", lambda: _canary(torch, cuda)),
    ]
    wanted = [(name, check) for name, check in checks if only is None or name in only]
    return [_safely(name, cuda or name in ("python", "torch", "model"), check) for name, check in wanted]


def main(args_json: bool) -> int:
    """Prints the findings, or one JSON object {ok, checks}; 0 if every essential check is right, else 1."""
    checks = run_checks()
    ok = all(check.ok for check in checks if check.essential)
    if args_json:
        print(json.dumps({"ok": ok, "checks": [asdict(check) for check in checks]}, ensure_ascii=False))
        return 0 if ok else 1
    for check in checks:
        mark = "ok" if check.ok else "FAIL" if check.essential else "warn"
        print(f"{mark:>4}  {check.name:<11} {check.value}")
        if check.remedy:
            print(f"{'':18}→ {check.remedy}")
    failed = [check.name for check in checks if not check.ok and check.essential]
    print("All that is essential is in order." if ok else f"To be mended first: {', '.join(failed)}.")
    return 0 if ok else 1


# -- the checks -------------------------------------------------------------------------------------------------------


def _python() -> Check:
    version, text = sys.version_info[:2], f"{platform.python_version()} at {Path(sys.prefix).name}"
    if version < TESTED_PYTHON or version > NEWEST_PYTHON:
        return Check("python", False, True, text, "install Python 3.11, remove .venv and run `make setup`")
    if version > TESTED_PYTHON:
        return Check("python", True, True, f"{text} (untested here; 3.11 is the tested one)")
    return Check("python", True, True, text)


def _torch(torch: Any) -> Check:
    version = _version("torch")
    if version is None:
        return Check("torch", False, True, "not installed", INSTALL)
    if torch is None:
        return Check("torch", False, True, f"{version}, but importing it fails", f"reinstall it: {INSTALL}")
    build = f"CUDA {torch.version.cuda} build" if torch.version.cuda else "CPU build"
    if _numbers(version) < _numbers(LEAST_TORCH):
        return Check("torch", False, True, f"{version} ({build})", f"{LEAST_TORCH} is the oldest that works: {INSTALL}")
    return Check("torch", True, True, f"{version} ({build})")


def _triton(cuda: bool) -> Check:
    version = _version("triton")
    if version is None:
        remedy = "install triton (on a CPU: triton==3.9.0); without it no lesson on kernels runs: " + INSTALL
        return Check("triton", False, cuda, "not installed", remedy)
    if _numbers(version) < _numbers(LEAST_TRITON):
        return Check("triton", False, cuda, version, f"{LEAST_TRITON} is the oldest that works: {INSTALL}")
    return Check("triton", True, cuda, version)


def _device(torch: Any, cuda: bool) -> Check:
    wanted = os.environ.get("WORKBENCH_DEVICE", "auto")
    cores = num_cpus()
    if cuda:
        name = torch.cuda.get_device_name(0)
        return Check("device", True, True, f"cuda: {name}, {torch.cuda.device_count()} visible; {cores} CPU cores")
    text = f"cpu: {cpu_name()}, {cores} cores"
    if wanted == "cuda":
        remedy = "unset WORKBENCH_DEVICE, or use a machine and a torch build with CUDA"
        return Check("device", False, True, f"WORKBENCH_DEVICE=cuda, but torch sees none; {text}", remedy)
    if wanted != "cpu" and _has_nvidia_driver():
        built = torch is not None and torch.version.cuda is not None
        remedy = (
            "update the NVIDIA driver, or check CUDA_VISIBLE_DEVICES"
            if built
            else "this torch is a CPU build: install a CUDA build of the same version"
        )
        return Check("device", False, False, f"an NVIDIA GPU is here, but torch does not see it; {text}", remedy)
    return Check("device", True, False, text)


def _capability(torch: Any, cuda: bool) -> Check:
    if cuda:
        major, minor = torch.cuda.get_device_capability(0)
        text = f"compute capability {major}.{minor}"
        if (major, minor) < (8, 0):
            remedy = (
                "bfloat16 and most kernels need 8.0 (Ampere) or newer: set WORKBENCH_DEVICE=cpu, or use another GPU"
            )
            return Check("capability", False, False, text, remedy)
        return Check("capability", True, False, text)
    if torch is None:
        return Check("capability", False, False, "unknown without torch", INSTALL)
    level = str(torch.backends.cpu.get_cpu_capability())
    if level == "DEFAULT" and platform.machine() in ("x86_64", "AMD64"):
        remedy = "the CPU has no AVX2: everything runs, but several times slower"
        return Check("capability", False, False, "no vector instructions that torch can use", remedy)
    return Check("capability", True, False, f"CPU vector instructions: {level}")


def _compiler(cuda: bool) -> Check:
    """A C compiler builds Triton's launchers, a C++ compiler the CPU kernels; both are tried, not only looked for."""
    remedy = "install a C and C++ compiler (Debian and Ubuntu: apt install g++; macOS: xcode-select --install)"
    c = _which(os.environ.get("CC"), "cc", "gcc", "clang")
    cpp = _which(os.environ.get("CXX"), "c++", "g++", "clang++")
    if c is None or cpp is None:
        missing = "C" if c is None else "C++"
        return Check("compiler", False, cuda, f"no {missing} compiler found", remedy)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text("#include <vector>\nint main() { return std::vector<int>(1)[0]; }\n", encoding="utf-8")
        done = _run([cpp, str(source), "-o", str(Path(folder, "probe"))], 60)
    if done is None or done.returncode != 0:
        return Check("compiler", False, cuda, f"{cpp} does not compile a small C++ program", remedy)
    return Check("compiler", True, cuda, f"{Path(c).name} and {Path(cpp).name}")


def _kernels(torch: Any) -> Check:
    """The C++ kernels for CPUs, which the first call builds: without them steps are slower and weights only floats."""
    if torch is None:
        return Check("kernels", False, False, "not built: they need torch", INSTALL)
    build = importlib.import_module("kernels.cpu.build")
    if reason := build.cannot_run():
        own = "WORKBENCH_CPU_KERNELS" in reason
        what = "unset WORKBENCH_CPU_KERNELS" if own else "install a C++ compiler (Debian and Ubuntu: apt install g++)"
        remedy = f"{what}; until then plain torch computes: right, slower, and without `--quantization`"
        return Check("kernels", False, False, f"the C++ kernels for CPUs do not run: {reason}", remedy)
    return Check("kernels", True, False, f"C++ kernels for CPUs, {build.build_name()} build")


def _memory() -> Check:
    free = free_memory()
    text = f"{free / GIB:.1f} GiB free"
    if free < GIB:
        return Check("memory", False, True, text, "close other programs: the default model needs about 1 GiB")
    if free < 3 * GIB:
        return Check("memory", False, False, text, "the larger lessons need 3 GiB: close other programs")
    return Check("memory", True, True, text)


def _disk() -> Check:
    free = shutil.disk_usage(_nearest(_home())).free
    text = f"{free / GIB:.1f} GiB free for models"
    if free < 2 * GIB:
        return Check("disk", False, False, text, "free some space, or set WORKBENCH_HOME to a folder on a larger disk")
    return Check("disk", True, False, text)


def _model() -> Check:
    """The model that is meant where none is named: ``WORKBENCH_MODEL``, else the course's."""
    try:
        name = default_model()
    except UsageError as error:
        return Check("model", False, True, str(error), "unset WORKBENCH_MODEL, or set it to a model's name")
    try:
        path = importlib.import_module("workbench.model.store").locate(name)
    except UsageError as error:
        return Check("model", False, True, str(error), "set WORKBENCH_MODEL to a model that exists, or unset it")
    except WorkbenchError as error:
        remedy = f"run `workbench model fetch {name}` (needs the network once)"
        return Check("model", False, True, f"{name} is not here: {error}", remedy)
    return Check("model", True, True, f"{name} ({Path(path).name})")


def _jupyter() -> Check:
    """Widgets are two halves that must match: ipywidgets 8 in the kernel, jupyterlab_widgets 3 beside JupyterLab 4."""
    found = {name: _version(name) for name in ("jupyterlab", "ipykernel", "ipywidgets", "jupyterlab_widgets")}
    text = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    missing = [name for name, version in found.items() if version is None]
    if missing:
        # A GPU box may run the notebooks' code without Jupyter, so what is absent only warns.
        return Check("jupyter", False, False, text, f"install {', '.join(missing)}: {INSTALL}")
    majors = {name: _numbers(version or "0")[0] for name, version in found.items()}
    if majors["jupyterlab"] < 4:
        return Check("jupyter", False, True, text, "JupyterLab 4 is needed: pip install 'jupyterlab>=4.2'")
    if majors["ipywidgets"] != 8 or majors["jupyterlab_widgets"] != 3:
        remedy = (
            "widgets would not show: install both halves together in this environment, "
            "pip install 'ipywidgets>=8.1,<9' 'jupyterlab_widgets>=3,<4', and restart JupyterLab"
        )
        return Check("jupyter", False, True, text, remedy)
    return Check("jupyter", True, True, text)


def _canary(torch: Any, cuda: bool) -> Check:
    """A kernel with a known answer, in a process of its own: compiled on a GPU, else in Triton's interpreter."""
    if torch is None or _version("triton") is None:
        return Check("canary", False, cuda, "not run: torch or triton is missing", INSTALL)
    how = "compiled" if cuda else "interpreted"
    remedy = (
        "Triton cannot be trusted on this GPU: check the driver, the compiler, and that Triton is torch's own version"
        if cuda
        else "the Triton interpreter is not usable here, so lessons on kernels show recorded results: " + INSTALL
    )
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    env.pop("TRITON_INTERPRET", None)
    if not cuda:
        env["TRITON_INTERPRET"] = "1"
    done = _run([sys.executable, "-m", "kernels.triton.canary", "cuda" if cuda else "cpu"], CANARY_SECONDS, env)
    if done is None:
        return Check("canary", False, cuda, f"{how}: no answer in {CANARY_SECONDS} s", remedy)
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Check("canary", False, cuda, f"{how}: it failed: {last}", remedy)
    if not answer["ok"] or answer["mode"] != how:
        text = f"{answer['mode']}: value {answer['index']} is {answer['got']:g}, not {answer['expected']:g}"
        return Check("canary", False, cuda, text, remedy)
    return Check("canary", True, cuda, f"{how}: {answer['got']:g} as expected")


# -- looking at the machine -------------------------------------------------------------------------------------------


def _safely(name: str, essential: bool, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # a doctor that crashes helps nobody
        text = f"the check itself failed: {type(error).__name__}: {error}"
        return Check(name, False, essential, text, f"{INSTALL}; if that does not help, report this line")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception:  # a broken binary package raises nearly anything
        return None


def _has_cuda(torch: Any) -> bool:
    try:
        return torch is not None and bool(torch.cuda.is_available())
    except Exception:
        return False


def _has_nvidia_driver() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """'2.13.0+cpu' → (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _which(*names: str | None) -> str | None:
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _home() -> Path:
    return Path(os.environ.get("WORKBENCH_HOME") or Path.home())


def _nearest(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path.cwd())


def _run(
    command: list[str], seconds: int, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    """None if it did not end in time or could not start."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


if __name__ == "__main__":
    sys.exit(main("--json" in sys.argv[1:]))
