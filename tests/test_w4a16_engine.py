"""4-bit weights as a GPU computes with them, the whole engine through it: laid out in tiles, multiplied by the kernel.

There is no GPU here: tensors of this CPU are treated as if they lay on one, and Triton's kernels are interpreted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.cpu import build, native
from kernels.reference.int4_tiles import Int4Tiles
from kernels.reference.weights import Weight, unpack
from kernels.triton import launch, w4a16
from kernels.triton.interpreter import faithful, interpreting
from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm, tokens
from workbench import LLM
from workbench.compress.quantize import quantize_model
from workbench.errors import UsageError
from workbench.model.decoder import Decoder
from workbench.model.divergence import kl_divergence
from workbench.model.quantize import ON_GPU, SCHEMES, quantize
from workbench.model.weights import load_weights
from workbench.quant.codecs import CODECS

pytestmark = pytest.mark.skipif(not interpreting(), reason="a CPU stands for the GPU")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 2}  # fmt: skip
IDS = [5, 6, 7, 90, 12, 3, 44, 100]
OPTIONS = {"dtype": "float16", "attention_backend": "torch_native"}
PRODUCTS = 4
"""Of a layer: query, key and value; what follows attention; gate and up; down."""


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("floats")
    make_tiny("smollm2", path, seed=3, **SIZES)
    return path


@pytest.fixture(scope="module")
def folders(floats: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[str, Path] = {}

    def folder(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp("quantized") / "out"
            quantize_model(str(floats), made[method], format=method, group_size=32)
        return made[method]

    return folder


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """This CPU stands for a GPU; the rows of each product that the kernel made."""
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", "none")
    for cached in (build._library, native.function):
        cached.cache_clear()
    monkeypatch.setattr(launch, "on_gpu", lambda device: True)
    monkeypatch.setattr(launch, "suits", lambda x: True)
    rows: list[int] = []
    multiply = w4a16.w4a16_linear
    monkeypatch.setattr(w4a16, "w4a16_linear", lambda x, *rest: rows.append(len(x)) or multiply(x, *rest))
    with faithful(check=True):
        yield rows
    for cached in (build._library, native.function):
        cached.cache_clear()


def parts_of(llm: LLM) -> list[Any]:
    layers = llm.runner.decoder.layers
    linears = [one for layer in layers for one in (*vars(layer.attention).values(), *vars(layer.mlp).values())]
    return [part for linear in linears if hasattr(linear, "parts") for part in linear.parts]


def as_floats(llm: LLM, weights: dict[str, Any]) -> torch.Tensor:
    """Logits by the same weights, dequantized in float32 and rounded to the dtype of activations."""
    plain = {name: unpack(one) if isinstance(one, Weight) else one for name, one in weights.items()}
    other = open_llm(Path(llm.config.model), **OPTIONS, quantization="none")
    plain = {name: tensor.to(torch.float16) for name, tensor in plain.items()}
    other.runner.decoder = Decoder(llm.model_config, plain, other.runner.decoder.attention, 256)
    return other.runner.logits(IDS)


@pytest.mark.parametrize("method", CODECS)
def test_a_checkpoint_s_numbers_stay_as_they_are(
    floats: Path, folders: Callable[..., Path], method: str, launched: list[int]
) -> None:
    exact = open_llm(folders(method), **OPTIONS, quantization="none")
    expected = exact.runner.logits(IDS)
    assert not launched
    own = open_llm(folders(method), **OPTIONS)
    assert own.quantization.name == method and own.quantization.why == "the checkpoint is"
    assert {part.group for part in parts_of(own)} == {32} and all(isinstance(one, Int4Tiles) for one in parts_of(own))
    found = own.runner.logits(IDS)
    assert launched == [len(IDS)] * PRODUCTS * own.model_config.num_layers
    far = kl_divergence(open_llm(floats, **OPTIONS).runner.logits(IDS), found)
    assert 5 * kl_divergence(expected, found) < far, "nearer to its own numbers than to those they were rounded from"
    assert sum(own.runner.decoder.weight_bytes) < sum(exact.runner.decoder.weight_bytes)
    assert own.weights_fingerprint != exact.weights_fingerprint
    del launched[:]
    assert len(tokens(own)) == 3 and 3 in launched, "a decode of three"


@pytest.mark.parametrize(("scheme", "group"), [("w4a16", 32), ("w4a16-g64", 128)])
def test_floats_are_packed_when_they_are_loaded(floats: Path, scheme: str, group: int, launched: list[int]) -> None:
    llm = open_llm(floats, **OPTIONS, quantization=scheme)
    kinds = {name.split(".")[-2]: kind for name, kind in llm.quantization.formats.items()}
    expected = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"), "uint4")
    # 64 inputs are one group of 64, so one scale serves a whole tile.
    # 96 inputs are no whole groups of 64; the embedding, which is the head too, stays as it is.
    assert kinds == {**expected, "down_proj": "uint4" if group == 32 else "float16", "embed_tokens": "float16"}
    assert {part.group for part in parts_of(llm) if isinstance(part, Int4Tiles)} == {group}
    weights: Any = load_weights(llm.model_config, floats, "auto", torch.float16)
    quantize(weights, scheme)
    found = llm.runner.logits(IDS)
    far = kl_divergence(open_llm(floats, **OPTIONS).runner.logits(IDS), found)
    assert launched and 5 * kl_divergence(as_floats(llm, weights), found) < far


def test_act_order_is_a_permutation(folders: Callable[..., Path], tmp_path: Path, launched: list[int]) -> None:
    """Query, key and value of the same order are one product; one of another order stands by itself."""
    held = load_file(folders("gptq") / "model.safetensors")
    shuffle = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    for name in held:
        if name.endswith("g_idx") and ".down_proj" not in name:
            held[name] = (shuffle.flip(0) if "layers.1.self_attn.v_proj" in name else shuffle).int() // 32
    (tmp_path / "config.json").write_text((folders("gptq") / "config.json").read_text())
    save_file(held, tmp_path / "model.safetensors")
    own = open_llm(tmp_path, **OPTIONS)
    orders = [layer.attention.qkv.parts for layer in own.runner.decoder.layers]
    assert [len(parts) for parts in orders] == [1, 3] and all(one.order is not None for one in orders[0])
    exact = open_llm(tmp_path, **OPTIONS, quantization="none").runner.logits(IDS)
    plain = open_llm(folders("gptq"), **OPTIONS).runner.logits(IDS)
    assert 5 * kl_divergence(exact, own.runner.logits(IDS)) < kl_divergence(exact, plain), "the order counts"


def test_what_a_gpu_does_not_compute_in_is_refused_with_what_it_does(floats: Path, launched: list[int]) -> None:
    for scheme in ("fast", *SCHEMES):
        if scheme not in ON_GPU:
            with pytest.raises(UsageError, match=f"quantization='{scheme}' runs on CPUs only so far .*use w4a16, "):
                open_llm(floats, **OPTIONS, quantization=scheme)


def test_without_triton_a_checkpoint_is_floats(
    folders: Callable[..., Path], launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "cannot_run", lambda device: "triton is not installed")
    monkeypatch.setattr(launch, "suits", lambda x: False)
    told = open_llm(folders("awq"), **OPTIONS).quantization
    assert told.name == "none" and "needs Triton on a GPU: triton is not installed" in told.why
    with pytest.raises(UsageError, match="needs Triton on a GPU"):
        open_llm(folders("awq"), **OPTIONS, quantization="awq")


def test_eight_bits_are_floats_on_a_gpu(floats: Path, tmp_path: Path, launched: list[int]) -> None:
    quantize_model(str(floats), tmp_path / "out", scheme="w8a16", group_size=32)
    llm = open_llm(tmp_path / "out", **OPTIONS)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert set(llm.quantization.formats.values()) == {"float16"}
    assert llm.runner.logits(IDS).isfinite().all() and not launched
