"""Operations apart and fused: the same numbers, the counted bytes, and what a layer moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import kernels
from kernels.triton.interpreter import interpreting
from workbench.lab.fused_pairs import fusions, layer_bytes
from workbench.model.config import ModelConfig
from workbench.simulate import model_shape


@pytest.fixture(scope="module")
def narrow() -> ModelConfig:
    return replace(model_shape("smollm2-135m"), hidden_size=48, intermediate_size=72)


@pytest.mark.parametrize("maker", ["reference", "cpu"])
def test_both_ways_give_the_same(narrow: ModelConfig, maker: str) -> None:
    for name, pair in fusions(narrow, 7, "cpu", torch.float32, maker).items():
        for _ in range(2):  # what is changed in place is changed alike
            torch.testing.assert_close(pair.fused(), pair.apart(), msg=name)


@pytest.mark.skipif(not interpreting(), reason="only interpreted kernels are counted")
def test_triton_kernels_move_what_is_counted(narrow: ModelConfig) -> None:
    pairs = fusions(narrow, 5, "cpu", torch.float32, "triton")
    assert len(pairs) == 5
    for name, pair in pairs.items():
        assert pair.kernel_bytes() == pair.counted.fused_bytes, name
        assert pair.torch_bytes() >= pair.counted.apart_bytes, name
        torch.testing.assert_close(pair.fused(), pair.apart(), msg=name)


def test_what_torch_moves_is_what_is_counted_where_the_calls_are_the_kernels(narrow: ModelConfig) -> None:
    pairs = fusions(narrow, 16, "cpu", torch.float32, "reference")
    assert pairs["SiLU · mul"].torch_bytes() == pairs["SiLU · mul"].counted.apart_bytes
    # Adding eps and taking the root: a column read and written, twice.
    norm = pairs["RMSNorm with residual"]
    assert norm.torch_bytes() == norm.counted.apart_bytes + 4 * 16 * 4
    assert norm.kernel_bytes() is None, "nobody counts what torch does inside"


def test_an_operation_nobody_fuses_is_left_out(narrow: ModelConfig) -> None:
    made = fusions(narrow, 4, "cpu", torch.float32)
    if "cpu" not in kernels.available("rms_norm"):
        assert list(made) == ["softmax"]
    else:
        assert "product with epilogue" not in made and made["SiLU · mul"].maker == "cpu"
    assert made["softmax"].maker == "torch's own kernel"


def test_a_layer_by_hand() -> None:
    config = replace(
        model_shape("smollm2-135m"), hidden_size=8, intermediate_size=10, num_heads=2, num_kv_heads=1, head_dim=4
    )
    parts = layer_bytes(config, 3, 2)
    assert parts["weights"] == (2 * (8 * 16 + 8 * 8 + 8 * 20 + 10 * 8),) * 2
    assert parts["products' inputs and results"] == (2 * 3 * ((8 + 16) + (8 + 8) + (8 + 20) + (10 + 8)),) * 2
    assert parts["SiLU · mul"] == (5 * 60, 3 * 60)
    assert parts["two norms with residual"][1] == 2 * (4 * 48 + 16)
