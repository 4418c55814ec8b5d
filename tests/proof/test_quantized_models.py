"""What 4-bit weights cost the default model, by who chose them: KL from the floats, on text that calibrated nobody.

Its weights are Q4_1 blocks made floats again, so losses are against that. Memory is a whole process's peak.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Proof

SECONDS, GIB = 360, 3.0
EVALUATED = ["--tokens", "2048", "--window", "512", "--stride", "256"]


def run(*arguments: str) -> dict:
    """A command's JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def made(out: Path, *options: str) -> tuple[float, dict]:
    """KL in nats a token, and what `quantize` said."""
    told = run("quantize", "smollm2-135m", "--scheme", "w4a16", *options, "--out", str(out))
    row = run("eval", str(out), "--reference", "smollm2-135m", "--device", "cpu", *EVALUATED)
    assert told["fallbacks"] == [] and row["tokens"] == 2047
    return row["kl"], told


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("symmetric", [False, True], ids=["with zero points", "symmetric"])
def test_gptq_and_awq_lose_less_than_rounding_to_nearest(tmp_path: Path, proof: Proof, symmetric: bool) -> None:
    """At groups of 64. Which of the two is better depends on the model; that both beat rounding does not."""
    lost = {}
    for algorithm in ("rtn", "gptq", "awq"):
        options = ["--algorithm", algorithm, "--group-size", "64", *(["--symmetric"] if symmetric else [])]
        lost[algorithm], told = made(tmp_path / algorithm, *options)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # KiB on Linux; the largest so far
        name = f"{algorithm}, 4 bits, groups of 64{', symmetric' if symmetric else ''}"
        proof.report(name, f"KL {lost[algorithm]:.3f} nats a token, {told['seconds']:.0f} s, at most {peak:.1f} GiB")
        assert told["seconds"] <= SECONDS and peak <= GIB
    assert lost["gptq"] < lost["rtn"] and lost["awq"] < lost["rtn"], lost


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_gguf_files_by_gptq_lose_less_than_ggml_rounding(tmp_path: Path, proof: Proof) -> None:
    """Q4_0, as Q4_1 gives this model's own bytes again and loses nothing."""
    lost = {}
    for algorithm in ("rtn", "gptq"):
        options = ["--algorithm", algorithm, "--symmetric", "--format", "gguf"]
        lost[algorithm], told = made(tmp_path / algorithm, *options)
        proof.report(f"Q4_0 by {algorithm}", f"KL {lost[algorithm]:.3f} nats a token, {told['seconds']:.0f} s")
    assert lost["gptq"] < lost["rtn"], lost
