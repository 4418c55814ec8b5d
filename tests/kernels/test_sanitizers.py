"""The stand-alone C++ tests in `native/`, with the kernels' own sources, under ASan with UBSan and under TSan.

A topic's tests go into a file of their own in `native/`, declared in `driver.h` and called in `main.cpp`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels.cpu import build

NATIVE = Path(__file__).parent / "native"
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
OPTIONS = {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66", "ASAN_OPTIONS": "detect_leaks=1:exitcode=66"}
pytestmark = pytest.mark.slow


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env={**os.environ, **OPTIONS})


@pytest.fixture(scope="module", params=[(s, b) for s in SANITIZERS for b in build.BUILDS], ids="-".join)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The sanitizer's name and the driver built with it."""
    sanitizer, flags = request.param
    if flags == "avx2" and not {"avx2", "fma", "f16c"} <= build._cpu_flags():
        pytest.skip("this processor has no AVX2, FMA and F16C")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler found (c++ or g++)")
    command = [compiler, *build.FLAGS, "-O1", "-g", *build.BUILDS[flags], *SANITIZERS[sanitizer], f"-I{build.FOLDER}"]
    folder = tmp_path_factory.mktemp(f"{sanitizer}-{flags}")
    empty = folder / "empty.cpp"
    empty.write_text("int main() {}\n")
    tried = run([*command, str(empty), "-o", str(folder / "empty")])
    if tried.returncode or run([str(folder / "empty")]).returncode:
        pytest.skip(f"{compiler} has no {SANITIZERS[sanitizer][0]} that runs here: {tried.stderr.strip()[-200:]}")
    objects = {source: str(folder / f"{source.parent.name}-{source.stem}.o") for source in sources()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda pair: run([*command, "-c", str(pair[0]), "-o", pair[1]]), objects.items()))
    built.append(run([*command, *objects.values(), "-o", str(folder / "driver")]))
    assert not [done.stderr for done in built if done.returncode]
    return sanitizer, str(folder / "driver")


def sources() -> list[Path]:
    return [*build.sources(), *sorted(NATIVE.glob("*.cpp"))]


def test_the_kernels_are_clean(driver: tuple[str, str]) -> None:
    done = run([driver[1]])
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "all tests passed\n")


def test_a_seeded_fault_is_found(driver: tuple[str, str]) -> None:
    """Else the check above would mean nothing."""
    sanitizer, path = driver
    fault, words = {"address": ("overrun", "heap-buffer-overflow"), "thread": ("race", "data race")}[sanitizer]
    done = run([path, fault])
    assert done.returncode == 66 and words in done.stderr
