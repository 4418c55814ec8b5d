"""Quantizing and back: every granularity against loops, anchors of SNR, early refusals that name the layer."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from tests.quant.measured import drawn, snr_db
from workbench.errors import UsageError
from workbench.quant.args import QuantArgs, require_fit
from workbench.quant.blocks import MXFP4, NVFP4, from_blocks, to_blocks
from workbench.quant.core import QParams, dequantize, fake_quant, observed, qparams, quantize
from workbench.quant.presets import PRESETS, preset

STRATEGIES = {
    "tensor": {"strategy": "tensor"},
    "channel": {"strategy": "channel"},
    "group": {"strategy": "group", "group_size": 24},
    "block": {"strategy": "block", "block_structure": (5, 32)},  # neither divides 12 × 72
}


def block_of(args: QuantArgs, row: int, column: int, shape) -> tuple[int, int]:
    if args.strategy == "tensor":
        return 0, 0
    if args.strategy == "channel":
        return row, 0
    if args.strategy == "group":
        return row, column // args.group_size
    return row // args.block_structure[0], column // args.block_structure[1]


def by_loops(x: torch.Tensor, args: QuantArgs) -> torch.Tensor:
    """Whole numbers, one by one."""
    blocks: dict[tuple[int, int], list[float]] = {}
    places = list(itertools.product(range(x.shape[0]), range(x.shape[1])))
    for r, c in places:
        blocks.setdefault(block_of(args, r, c, x.shape), []).append(float(x[r, c]))
    out = torch.empty_like(x)
    top, bottom = 2 ** (args.bits - 1) - 1, -(2 ** (args.bits - 1))
    for r, c in places:
        numbers = blocks[block_of(args, r, c, x.shape)]
        low, high = min(0.0, *numbers), max(0.0, *numbers)
        if args.symmetric:
            bottom_used = -top if args.symmetric_range == "narrow" else bottom
            scale = torch.tensor(max(-low, high) / ((top - bottom_used) / 2))
            zero = 0.0
        else:
            bottom_used, scale = bottom, torch.tensor((high - low) / (top - bottom))
            zero = min(max(bottom - round(low / float(scale)), bottom), top)
        q = min(max(float(torch.round(x[r, c] / scale)) + zero, bottom_used), top)
        out[r, c] = (q - zero) * float(scale)
    return out


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("symmetry", ["full", "narrow", "asymmetric"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_granularity_is_what_loops_say(strategy, symmetry, bits):
    args = QuantArgs(bits, **STRATEGIES[strategy], symmetric=symmetry != "asymmetric")
    if symmetry == "narrow":
        args = replace(args, symmetric_range="narrow")
    x = drawn(12, 72) + 0.4
    assert torch.allclose(fake_quant(x, args), by_loops(x, args), rtol=1e-5, atol=1e-6)


def test_tokens_are_rows_of_any_batch():
    args = QuantArgs(8, strategy="token", dynamic=True)
    x = drawn(3, 5, 64)
    x[1, 2] = 0
    x[2, 4] *= 1000
    apart = torch.stack([fake_quant(row, args) for row in x.reshape(-1, 64)]).reshape(x.shape)
    assert torch.equal(fake_quant(x, args), apart)
    assert fake_quant(x, args)[1, 2].eq(0).all() and fake_quant(x, args).isfinite().all()


@pytest.mark.parametrize("name", PRESETS)
def test_what_comes_back_is_kept_by_a_second_time(name):
    args = PRESETS[name].weights
    x = drawn(8, 128)
    params = qparams(*observed(x, args), args)
    once = fake_quant(x, args, params)
    assert torch.equal(fake_quant(once, args, params), once)
    q = quantize(x, params, args)
    for _ in range(2):  # reading changes nothing
        assert torch.equal(dequantize(q, params, args), once)
    if args.type == "int":
        assert q.dtype == torch.int8 and q.min() >= args.min and q.max() <= args.max


@pytest.mark.parametrize(("name", "format"), [("mxfp4", MXFP4), ("nvfp4", NVFP4)])
def test_block_floats_are_the_block_formats(name, format):
    x = drawn(16, 64) * torch.tensor([1e-3, 1, 5, 100]).repeat(4).unsqueeze(1)
    assert torch.equal(fake_quant(x, PRESETS[name].weights), from_blocks(to_blocks(x, format)))


ANCHORS = {  # quantization.md's figures for N(0, 1), in dB
    "INT4 asym g32": (QuantArgs(4, group_size=32, symmetric=False), 21.9),
    "INT4 asym g64": (QuantArgs(4, group_size=64, symmetric=False), 20.8),
    "INT4 asym g128": (QuantArgs(4, group_size=128, symmetric=False), 20.0),
    "INT4 sym /7 g32": (QuantArgs(4, group_size=32, symmetric_range="narrow"), 19.8),
    "INT4 sym /7 g64": (QuantArgs(4, group_size=64, symmetric_range="narrow"), 19.4),
    "INT4 sym /7.5 g64": (QuantArgs(4, group_size=64), 19.8),
    "INT8 channel": (QuantArgs(8, strategy="channel"), 41.8),
    "E4M3 channel": (QuantArgs(8, "float", "channel"), 31.6),
    "MXFP4": (PRESETS["mxfp4"].weights, 18.8),
    "NVFP4": (PRESETS["nvfp4"].weights, 20.4),
}


@pytest.mark.parametrize("name", ANCHORS)
def test_anchors_of_a_gaussian(name):
    args, anchor = ANCHORS[name]
    x = drawn(192, 2048)
    assert snr_db(x, fake_quant(x, args)) == pytest.approx(anchor, abs=0.5)


def test_smaller_groups_lose_less():
    x = drawn(64, 576)
    for symmetric in (True, False):
        found = [snr_db(x, fake_quant(x, preset("w4a16", g, symmetric).weights)) for g in (-1, 192, 64, 32)]
        assert found == sorted(found)


def test_a_range_always_holds_zero():
    """A group of like numbers has no spread, and yet they must come back."""
    args = QuantArgs(4, group_size=32, symmetric=False)
    for value in (3.0, -0.02, 0.0, 1e-30):
        back = fake_quant(torch.full((2, 64), value), args)
        assert torch.allclose(back, torch.full((2, 64), value), rtol=0.04)


def test_zero_points_are_signed_whole_numbers_in_range():
    args = QuantArgs(4, group_size=32, symmetric=False)
    x = torch.cat((drawn(4, 32).abs(), -drawn(4, 32).abs(), drawn(4, 32)))
    params = qparams(*observed(x, args), args)
    assert params.zero is not None and params.zero.dtype == torch.int8
    assert params.zero[:4].eq(-8).all() and params.zero[4:8].eq(7).all() and params.zero.abs().max() <= 8


def test_scales_are_what_their_format_can_hold():
    x = drawn(8, 64)
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        args = QuantArgs(4, group_size=32, scale=name)
        scale = qparams(*observed(x, args), args).scale
        assert torch.equal(scale, scale.to(dtype).float())
    args = QuantArgs(4, group_size=32, scale="fp16")
    back = fake_quant(torch.full((1, 32), 1e-9), args)
    assert back.isfinite().all(), "a scale that would round to 0 is kept above it"
    with pytest.raises(ValueError, match="bf16 or fp32"):
        fake_quant(torch.full((1, 32), 1e6), args)
    assert fake_quant(torch.full((1, 32), 1e6), replace(args, scale="bf16"))[0, 0] == pytest.approx(1e6, rel=0.08)


def test_infinities_and_nan_are_refused():
    args = QuantArgs(4, group_size=32)
    for bad in (torch.inf, torch.nan):
        x = drawn(2, 32)
        x[1, 3] = bad
        with pytest.raises(ValueError, match="infinities or NaN"):
            fake_quant(x, args)
        good = QParams(torch.ones(2, 1), None)
        with pytest.raises(ValueError, match=r"layer\.3.*infinities or NaN"):
            quantize(x, good, args, "layer.3")


SHAPES = {
    "model.layers.0.self_attn.q_proj": (576, 576),
    "model.layers.0.mlp.down_proj": (576, 1536),
    **{f"model.layers.{i}.mlp.up_proj": (1536, 576) for i in range(4)},
}


def test_groups_that_do_not_divide_are_refused_early_by_the_layers_name():
    args = QuantArgs(4, group_size=128)
    with pytest.raises(UsageError, match=r"q_proj: groups of 128 do not divide its 576 inputs; groups of 64 or 32"):
        fake_quant(drawn(4, 576), args, name="model.layers.0.self_attn.q_proj")
    with pytest.raises(UsageError) as told:
        require_fit(args, SHAPES)
    message = str(told.value)
    assert "model.layers.0.self_attn.q_proj" in message and "and 2 more" in message and "576 inputs" in message
    assert "down_proj" not in message, "1536 is 12 · 128"
    require_fit(QuantArgs(4, group_size=64), SHAPES)
    require_fit(QuantArgs(4, strategy="channel"), SHAPES)
    with pytest.raises(UsageError, match="no usual group does"):
        QuantArgs(4, group_size=32).block_size((2, 100))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"bits": 1}, "2 to 8"),
        ({"bits": 6, "type": "float"}, "4 or 8"),
        ({"type": "nf4"}, "int or float"),
        ({"group_size": None}, "give one with strategy 'group'"),
        ({"strategy": "channel"}, "only then"),
        ({"group_size": -1}, "strategy 'channel'"),
        ({"strategy": "block", "group_size": None}, "block_structure"),
        ({"strategy": "rows"}, "tensor, channel"),
        ({"type": "float", "symmetric": False}, "no zero point"),
        ({"scale": "e8m0"}, "whole numbers"),
        ({"scale": "fp8"}, "fp16, bf16"),
        ({"scale_mode": "round"}, "rceil"),
        ({"symmetric_range": "7"}, "full or narrow"),
    ],
)
def test_what_does_not_go_together_is_refused(wrong, told):
    with pytest.raises(UsageError, match=told):
        QuantArgs(**{"group_size": 64, **wrong})


def test_bits_of_a_number_count_scales_and_zeros():
    assert preset("w4a16").weights.bits_per_number((576, 576)) == 4 + 20 / 64
    assert preset("w4a16", 32, symmetric=True).weights.bits_per_number((576, 576)) == 4 + 16 / 32
    assert preset("w4a16", -1, symmetric=True).weights.bits_per_number((8, 64)) == 4 + 16 / 64
    assert PRESETS["mxfp4"].weights.bits_per_number((32, 64)) == MXFP4.bits
    assert PRESETS["nvfp4"].weights.bits_per_number((32, 64)) == NVFP4.bits
    assert QuantArgs(8, "float", "block", block_structure=(128, 128)).num_blocks((192, 576)) == (2, 5)


def test_presets_have_the_names_of_the_engines_option():
    assert set(PRESETS) == {"w4a16", "w8a16", "w8a8-int8", "fp8", "w4a8", "mxfp4", "nvfp4"}
    with pytest.raises(UsageError, match="w8a8-int8"):
        preset("w8a8")
    with pytest.raises(UsageError, match="says itself"):
        preset("nvfp4", group_size=32)


def test_whole_numbers_beat_floats_of_as_many_bits_where_nothing_stands_out():
    """FP8 pays about ten decibels for its range; with a few outliers in the row it is worth its price."""
    x = drawn(64, 1024)
    int8, fp8 = PRESETS["w8a16"].weights, PRESETS["fp8"].weights
    assert 8 < snr_db(x, fake_quant(x, int8)) - snr_db(x, fake_quant(x, fp8)) < 12
    x[:, 7] *= 100
    small = torch.arange(1024) != 7
    back = [fake_quant(x, args)[:, small] for args in (int8, fp8)]
    assert snr_db(x[:, small], back[0]) + 15 < snr_db(x[:, small], back[1])
