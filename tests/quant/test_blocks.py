"""MXFP4, MXFP8, NVFP4: scales by their definitions, blocks against plain arithmetic."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.quant.measured import drawn, snr_db
from workbench.errors import UsageError
from workbench.quant.blocks import BLOCK_FORMATS, MXFP4, MXFP8, MXFP8_E5M2, NVFP4, from_blocks, to_blocks
from workbench.quant.formats import E2M1, E4M3, E5M2, FP16, decode
from workbench.quant.scales import POWER_MODES, float_scale, power_scale, tensor_scale

FORMATS = [MXFP4, MXFP8, MXFP8_E5M2, NVFP4]
ids = lambda f: f.name


def exponent_by_definition(largest: float, element, mode: str) -> int:
    if mode == "floor":
        return math.floor(math.log2(largest)) - element.top_exponent
    if mode == "ceil":
        return math.ceil(math.log2(largest)) - element.top_exponent
    if mode == "rceil":
        return next(k for k in range(-40, 20) if largest <= element.max * 2.0**k)
    power = math.floor(math.log2(largest))
    rounded = round(largest / 2.0 ** (power - element.mantissa_bits))  # to even, in steps of the element's mantissa
    return power + (rounded == 2 ** (element.mantissa_bits + 1)) - element.top_exponent


@pytest.mark.parametrize("mode", POWER_MODES)
@pytest.mark.parametrize("element", [E2M1, E4M3, E5M2], ids=ids)
def test_powers_of_two_by_definition(element, mode):
    around = [m * 2.0**e for e in (-20, -1, 0, 9) for m in (1, 1.0001, 1.25, 1.49, 1.5, 1.51, 1.74, 1.75, 1.9, 1.99)]
    around += [element.max, element.max * 1.01, np.nextafter(np.float32(element.max), np.float32(0)).item()]
    ours = power_scale(torch.tensor(around), element, mode).tolist()
    assert ours == [2.0 ** exponent_by_definition(float(np.float32(x)), element, mode) for x in around]


def test_the_modes_clip_or_stretch_as_they_say():
    largest = torch.tensor([7.9])  # between 6 and 8: FP4's top number is 6
    scales = {mode: power_scale(largest, E2M1, mode).item() for mode in POWER_MODES}
    assert scales == {"floor": 1, "even": 2, "ceil": 2, "rceil": 2}
    assert power_scale(torch.tensor([6.5]), E2M1, "even").item() == 1, "rounds to 6: clipped a little"
    assert power_scale(torch.tensor([6.0, 5.0]), E2M1, "ceil").tolist() == [2, 2]
    assert power_scale(torch.tensor([6.0, 5.0]), E2M1, "rceil").tolist() == [1, 1]
    assert power_scale(torch.tensor([0.0, 1e-45]), E2M1).tolist() == [2.0**-127] * 2
    assert power_scale(torch.tensor([3e38]), E5M2, "ceil").item() == 2.0**113


@pytest.mark.parametrize("format", FORMATS, ids=ids)
def test_blocks_against_ml_dtypes(format):
    """Scale, divide and cast again with numpy: every code and every number."""
    x = drawn(6, 4 * format.size).mul_(torch.tensor([1e-3, 1, 30, 1e3, 1e-6, 5]).unsqueeze(1))
    blocks = to_blocks(x, format)
    scale_kind = {"e8m0": ml_dtypes.float8_e8m0fnu, "fp8_e4m3": ml_dtypes.float8_e4m3fn}[format.scale.name]
    kinds = {"fp4_e2m1": "float4_e2m1fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
    element_kind = getattr(ml_dtypes, kinds[format.element.name])
    scales = blocks.scales.numpy().view(scale_kind).astype(np.float64)
    if format is NVFP4:
        scales = (scales.astype(np.float32) * blocks.tensor_scale.numpy()).astype(np.float64)
    grouped = x.numpy().astype(np.float64).reshape(6, 4, format.size)
    top = format.element.max
    wanted = np.clip(grouped / scales[..., None], -top, top).astype(element_kind)
    codes = blocks.codes.numpy().reshape(6, 4, format.size)
    if format.element is E2M1:
        assert np.array_equal(decode(torch.from_numpy(codes), E2M1).numpy(), wanted.astype(np.float32))
    else:
        assert np.array_equal(codes, wanted.view(np.uint8))
    values = (wanted.astype(np.float64) * scales[..., None]).reshape(6, -1)
    assert np.allclose(from_blocks(blocks).numpy(), values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("format", FORMATS, ids=ids)
def test_a_second_time_changes_nothing(format):
    once = from_blocks(to_blocks(drawn(8, 8 * format.size), format))
    again = to_blocks(once, format, tensor_wide=to_blocks(drawn(8, 8 * format.size), format).tensor_scale)
    assert torch.equal(from_blocks(again), once)


@pytest.mark.parametrize(("format", "anchor"), [(MXFP4, 18.8), (NVFP4, 20.4)], ids=["mxfp4", "nvfp4"])
def test_anchors_of_a_gaussian(format, anchor):
    x = drawn(256, 576)
    assert snr_db(x, from_blocks(to_blocks(x, format))) == pytest.approx(anchor, abs=0.5)


def test_what_the_rounding_of_scales_is_worth():
    """FP4's next number after 6 would be 8, E4M3's after 448 is 480: so `floor` clips the one more than the other."""
    x = drawn(64, 576)
    snr = {(f.name, m): snr_db(x, from_blocks(to_blocks(x, f, m))) for f in (MXFP4, MXFP8) for m in POWER_MODES}
    assert snr["mxfp4", "floor"] > snr["mxfp4", "ceil"], "a coarse grid pays more for being stretched"
    assert snr["mxfp8", "rceil"] > snr["mxfp8", "floor"], "a fine one for clipping"


def test_bits_of_a_number():
    assert {name: f.bits for name, f in BLOCK_FORMATS.items()} == {
        "mxfp4": 4.25, "mxfp8": 8.25, "mxfp8_e5m2": 8.25, "nvfp4": 4.5,
    }  # fmt: skip


def test_nvfp4_uses_the_whole_range_of_its_scales():
    x = drawn(4, 64)
    x[2, 20] = 77.0
    blocks = to_blocks(x, NVFP4)
    assert float(blocks.tensor_scale) == pytest.approx(77 / (6 * 448))
    assert float(decode(blocks.scales, E4M3).max()) == 448
    assert from_blocks(blocks)[2, 20] == pytest.approx(77.0)
    assert float(tensor_scale(torch.zeros(3), E2M1)) == 1


def test_tiny_and_empty_blocks_keep_a_scale():
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 16], x[0, 33] = 1e4, 1e-4, 1e-30
    blocks = to_blocks(x, NVFP4)
    assert (blocks.scales > 0).all()
    back = from_blocks(blocks)
    assert back.isfinite().all() and back[0, 0] == pytest.approx(1e4) and back[0, 48:].eq(0).all()
    for format in FORMATS:
        assert from_blocks(to_blocks(torch.zeros(2, 64), format)).eq(0).all()
        for size in (1e-38, 3e38):
            assert from_blocks(to_blocks(torch.full((1, 32), size), format)).isfinite().all()


def test_a_shared_scale_must_cover_all_that_share_it():
    small, large = drawn(4, 32), 10 * drawn(4, 32, seed=1)
    shared = to_blocks(torch.cat((small, large)), NVFP4).tensor_scale
    for part in (small, large):
        assert snr_db(part, from_blocks(to_blocks(part, NVFP4, tensor_wide=shared))) > 17
    with pytest.raises(ValueError, match="share it"):
        to_blocks(large, NVFP4, tensor_wide=to_blocks(small, NVFP4).tensor_scale)


def test_refusals():
    with pytest.raises(UsageError, match="rows of 48 are no whole blocks of 32"):
        to_blocks(drawn(2, 48), MXFP4)
    with pytest.raises(UsageError, match="rceil"):
        to_blocks(drawn(2, 32), MXFP4, "round")
    for bad in (torch.inf, torch.nan):
        with pytest.raises(ValueError, match="finite"):
            to_blocks(torch.full((1, 32), bad), MXFP8)


def test_scales_of_floats():
    wanted = torch.tensor([0.0, 1e-9, 0.1, 65504.0])
    kept = float_scale(wanted, FP16).tolist()
    assert kept == [1.0, 2.0**-24, float(np.float16(0.1)), 65504.0]
    with pytest.raises(ValueError, match="beyond fp16"):
        float_scale(torch.tensor([7e4]), FP16)
