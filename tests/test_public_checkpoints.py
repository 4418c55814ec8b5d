"""Checkpoints that public quantizers wrote, and the logits that public code computes of them.

``tests/data/make_quantized_checkpoints.py`` made them; ``about.json`` says with which versions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.tiny_llm import open_llm
from workbench.model.weights import quantized
from workbench.model.weights.quantized import quantized_names, read_codec

FOLDER = Path(__file__).parent / "data/quantized_checkpoints"
TOLERANCE = 1e-3
ABOUT = json.loads((FOLDER / "about.json").read_text())
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))
METHODS = {
    "gptq": "gptq",
    "awq": "awq",
    "compressed-gptq": "compressed-tensors",
    "compressed-awq": "compressed-tensors",
}


def logits(name: str, **options: str) -> torch.Tensor:
    return open_llm(FOLDER / name, **options).runner.logits(ABOUT["ids"])


def test_files_are_as_the_tools_wrote_them() -> None:
    assert set(NAMES) == set(METHODS)
    for name, digest in ABOUT["sha256"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_public_code(name: str) -> None:
    """As floats and as they are; in every layer all seven matrices are computed with in 4 bits."""
    wanted = load_file(FOLDER / "logits.safetensors")[name]
    torch.testing.assert_close(logits(name, quantization="none"), wanted, rtol=TOLERANCE, atol=TOLERANCE)
    llm = open_llm(FOLDER / name)
    assert llm.quantization.name == METHODS[name] and llm.quantization.why == "the checkpoint is"
    names = quantized_names(FOLDER / name)
    assert len(names) == 7 and {llm.quantization.formats[one] for one in names} == {"uint4"}
    torch.testing.assert_close(llm.runner.logits(ABOUT["ids"]), wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_a_zero_point_read_wrong_by_one_would_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = read_codec(FOLDER / name)

    class OffByOne:
        ENDS = codec.ENDS

        def decode(self, tensors, stem):
            made = codec.decode(tensors, stem)
            zero = torch.zeros_like(made.params.scale) if made.params.zero is None else made.params.zero.float()
            return replace(made, params=made.params._replace(zero=zero + 1))

    wanted = load_file(FOLDER / "logits.safetensors")[name]
    monkeypatch.setattr(quantized, "read_codec", lambda folder: OffByOne())
    assert (logits(name, quantization="none") - wanted).norm() > 0.05 * wanted.norm()
