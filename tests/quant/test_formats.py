"""Number formats against ml_dtypes (every code, every float16, every midpoint) and against plain arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from workbench.errors import UsageError
from workbench.quant import formats
from workbench.quant.formats import E2M1, E4M3, E5M2, E8M0, FP16, FP32, INT4, INT8, TF32, decode, encode, grid, round_to

THEIRS = {
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "int8": np.int8,
    "int4": ml_dtypes.int4,
}
SMALL = [name for name in THEIRS if name not in ("fp32", "int8", "int4")]
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}
EVERY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def words(numbers: np.ndarray) -> np.ndarray:
    return numbers.view(UNSIGNED[numbers.dtype.itemsize]).astype(np.int64)


def of_codes(name: str, codes: np.ndarray) -> np.ndarray:
    """ml_dtypes' reading of codes; it keeps small formats in a byte."""
    kind = np.dtype(THEIRS[name])
    if name == "int4":
        codes = np.where(codes > 7, codes - 16, codes)  # its int4 is read as a number
        return codes.astype(kind).astype(np.float32)
    return codes.astype(UNSIGNED[kind.itemsize]).view(kind).astype(np.float32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal with the sign of zero; NaN is NaN."""
    return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("name", [name for name in THEIRS if name != "fp32"])
def test_every_code_means_what_ml_dtypes_says(name):
    kind = formats.FORMATS[name]
    codes = np.arange(1 << kind.bits)
    ours = decode(torch.from_numpy(codes), kind).numpy()
    assert same(ours, of_codes(name, codes))


@pytest.mark.parametrize("name", [name for name in THEIRS if name != "fp32"])
def test_every_number_has_its_own_code(name):
    kind = formats.FORMATS[name]
    codes = torch.arange(1 << kind.bits)
    values = decode(codes, kind)
    kept = ~values.isnan()
    assert torch.equal(encode(values[kept], kind, saturate=False), codes[kept])


def probes(name: str) -> np.ndarray:
    """Every float16, and around every pair of neighbours of the format their middle and what lies next to it."""
    kind = formats.FORMATS[name]
    ends = grid(kind).double().numpy()
    middle = ((ends[1:] + ends[:-1]) / 2).astype(np.float32)
    near = [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))]
    beyond = np.array([1, 1.03, 1.04, 1.0625, 1.1, 2, 1e9]) * float(kind.max)
    with np.errstate(over="ignore"):
        return np.concatenate([part.astype(np.float32) for part in (EVERY_HALF, *near, beyond, -beyond)])


@pytest.mark.parametrize("name", SMALL)
def test_rounding_to_nearest_is_ml_dtypes_on_every_float16_and_every_midpoint(name):
    kind, values = formats.FORMATS[name], probes(name)
    if name == "fp4_e2m1":
        values = values[~np.isnan(values)]  # ml_dtypes makes −0 of it, here it is refused
    if name == "e8m0":
        # The last float32 below 1.5 · 2^-127 is nearer to 2^-127, and ml_dtypes 0.6 rounds it up: it is subnormal.
        values = values[values != np.nextafter(np.float32(1.5 * 2.0**-127), np.float32(0))]
    saturate = name == "fp4_e2m1"  # as ml_dtypes does
    ours = round_to(torch.from_numpy(values), kind, saturate=saturate).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        theirs = values.astype(THEIRS[name]).astype(np.float32)
    assert same(ours, theirs)


def test_float32_keeps_every_bit():
    generator = np.random.default_rng(0)
    raw = generator.integers(0, 1 << 32, 50_000, dtype=np.uint64).astype(np.uint32)
    raw[:6] = [0, 1 << 31, 1, 0x007FFFFF, 0x7F7FFFFF, 0xFF800000]
    values = raw.view(np.float32)
    finite = ~np.isnan(values)
    codes = encode(torch.from_numpy(values), FP32, saturate=False)
    assert np.array_equal(codes.numpy()[finite], raw.astype(np.int64)[finite])
    assert same(decode(codes, FP32).numpy(), values)
    # From float64 it rounds as numpy does, over the subnormals and beyond the end.
    wide = np.concatenate([values[finite].astype(np.float64) * 1.0000000123, [1e-46, 7e-46, 8e-46, 3.4028236e38, 1e39]])
    with np.errstate(over="ignore"):
        assert same(round_to(torch.from_numpy(wide), FP32, saturate=False).numpy(), wide.astype(np.float32))


def test_whole_numbers_are_cut_as_ml_dtypes_cuts_them():
    values = EVERY_HALF[np.abs(EVERY_HALF.astype(np.float32)) < 128].astype(np.float32)
    ours = encode(torch.from_numpy(values), INT8, "zero").numpy()
    assert np.array_equal(ours, values.astype(np.int8).view(np.uint8))
    few = values[(values > -9) & (values < 8)]
    ours = decode(encode(torch.from_numpy(few), INT4, "zero"), INT4).numpy()
    assert np.array_equal(ours, few.astype(ml_dtypes.int4).astype(np.float32))


@pytest.mark.parametrize("rounding", ["nearest", "away", "zero", "up", "down"])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp4_e2m1", "fp8_e5m2", "int4", "e8m0"])
def test_each_rounding_as_fractions_say(name, rounding):
    """Neighbours are looked up in the grid, distances compared as fractions: another way to the same answer."""
    kind = formats.FORMATS[name]
    numbers = [Fraction(v) for v in grid(kind).double().tolist()]
    draw = torch.Generator().manual_seed(3)
    pick = torch.randint(0, len(numbers) - 1, (300,), generator=draw).tolist()
    part = torch.tensor([0, 0.25, 0.4999, 0.5, 0.5001, 0.75])[torch.randint(0, 6, (300,), generator=draw)].tolist()
    exact = [numbers[i] + (numbers[i + 1] - numbers[i]) * Fraction(share) for i, share in zip(pick, part, strict=True)]
    probes = torch.tensor([float(x) for x in exact], dtype=torch.float64)
    ours = round_to(probes, kind, rounding).tolist()
    odd = encode(torch.tensor([float(numbers[i]) for i in pick]), kind) % 2 == 1
    for i, x, found, low_is_odd in zip(pick, probes.tolist(), ours, odd.tolist(), strict=True):
        low, high, x = numbers[i], numbers[i + 1], Fraction(x)
        if x == low:
            expected = low
        elif rounding in ("up", "down"):
            expected = high if rounding == "up" else low
        elif rounding == "zero":
            expected = low if x > 0 else high
        elif x - low != high - x:
            expected = low if x - low < high - x else high
        elif rounding == "away":
            expected = high if x > 0 else low
        else:  # E8M0 has no mantissa bit that could be even: 1.5 · 2^k goes up
            expected = high if low_is_odd or name == "e8m0" else low
        assert found == expected, (float(x), found, float(expected))


@pytest.mark.parametrize("kind", [E4M3, INT8, E2M1], ids=lambda k: k.name)
def test_stochastic_rounding_is_right_on_average_and_repeats_with_its_seed(kind):
    x = torch.full((10_000,), 2.3)
    drawn = [round_to(x, kind, "stochastic", generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert len(drawn[0].unique()) == 2
    assert abs(float(drawn[0].mean()) - 2.3) < 0.02


def test_saturating_or_not():
    x = torch.tensor([448, 464, 465, 480, 1e4, torch.inf, -torch.inf, -465])
    assert round_to(x, E4M3).tolist() == [448, 448, 448, 448, 448, 448, -448, -448]
    kept = round_to(x, E4M3, saturate=False)
    assert kept[:2].tolist() == [448, 448] and kept[2:].isnan().all()
    x = torch.tensor([57344, 61439, 61440, torch.inf, -1e6])
    assert round_to(x, E5M2, saturate=False).tolist() == [57344, 57344, torch.inf, torch.inf, -torch.inf]
    assert round_to(x, E5M2).tolist() == [57344] * 4 + [-57344]
    # Towards zero nothing finite leaves the range, in other directions only one side does.
    assert round_to(torch.tensor([1e9, -1e9]), E5M2, "zero", saturate=False).tolist() == [57344, -57344]
    assert round_to(torch.tensor([1e9, -1e9]), E5M2, "up", saturate=False).tolist() == [torch.inf, -57344]
    assert round_to(torch.tensor([1e9, -1e9]), E5M2, "down", saturate=False).tolist() == [57344, -torch.inf]
    assert round_to(torch.tensor([7.0, 100, -9, torch.inf]), INT4).tolist() == [7, 7, -8, 7]
    assert round_to(torch.tensor([0.0, 2.0**-140, 3e38]), E8M0).tolist() == [2.0**-127, 2.0**-127, 2.0**127]


@pytest.mark.parametrize("kind", [E2M1, INT4, INT8], ids=lambda k: k.name)
def test_what_a_format_cannot_hold_is_refused_and_not_made_a_number(kind):
    with pytest.raises(ValueError, match="has no NaN"):
        encode(torch.tensor([1.0, torch.nan]), kind)
    with pytest.raises(ValueError, match="saturate=True"):
        encode(torch.tensor([1e9]), kind, saturate=False)


def test_nan_stays_nan_even_when_saturating():
    for kind in (E4M3, E5M2, FP16, TF32, E8M0):
        assert round_to(torch.tensor([torch.nan]), kind).isnan().all()
    assert round_to(torch.tensor([-1.0]), E8M0).isnan().all(), "a scale has no sign"


FACTS = {  # max, smallest normal, smallest positive, distance after 1: as the formats' documents state them
    "fp32": (3.4028234663852886e38, 2.0**-126, 2.0**-149, 2.0**-23),
    "tf32": ((2 - 2.0**-10) * 2.0**127, 2.0**-126, 2.0**-136, 2.0**-10),
    "fp16": (65504.0, 2.0**-14, 2.0**-24, 2.0**-10),
    "bf16": ((2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2.0**-7),
    "fp8_e4m3": (448.0, 2.0**-6, 2.0**-9, 0.125),
    "fp8_e5m2": (57344.0, 2.0**-14, 2.0**-16, 0.25),
    "fp4_e2m1": (6.0, 1.0, 0.5, 0.5),
    "e8m0": (2.0**127, 2.0**-127, 2.0**-127, 1.0),
}


@pytest.mark.parametrize("name", FACTS)
def test_ranges(name):
    kind = formats.FORMATS[name]
    assert (kind.max, kind.smallest_normal, kind.tiny, kind.epsilon) == FACTS[name]
    assert kind.min == (kind.tiny if name == "e8m0" else -kind.max)


def test_bits():
    widths = {name: kind.bits for name, kind in formats.FORMATS.items()}
    assert widths == {
        "fp32": 32, "tf32": 19, "fp16": 16, "bf16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp4_e2m1": 4, "e8m0": 8,
        "int8": 8, "int4": 4,
    }  # fmt: skip
    assert [k.top_exponent for k in (E2M1, E4M3, E5M2)] == [2, 8, 15]


def test_grids():
    assert grid(E2M1).tolist() == [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert grid(INT4).tolist() == list(range(-8, 8))
    assert len(grid(E4M3)) == 256 - 2 - 1 and len(grid(E5M2)) == 256 - 8 - 1 and len(grid(E8M0)) == 255
    with pytest.raises(UsageError, match="too many numbers"):
        grid(FP32)


def test_spacing_is_the_distance_to_the_next_number_of_the_grid():
    for name in ("fp8_e4m3", "fp4_e2m1", "fp16", "bf16", "e8m0"):
        kind = formats.FORMATS[name]
        numbers = grid(kind).double()
        numbers = numbers[numbers >= 0]
        gaps = formats.spacing(numbers, kind)
        assert torch.equal(gaps[:-1], numbers[1:] - numbers[:-1])
    assert formats.spacing(torch.tensor([1.0, 1e6]), FP16).tolist()[0] == 2.0**-10
    assert formats.spacing(torch.tensor([1e6]), formats.BF16).tolist() == [4096.0]
    assert formats.spacing(torch.tensor([1e6]), FP16).isnan().all(), "beyond the range"


def test_tf32_keeps_ten_bits():
    x = torch.tensor([1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 7.6])
    assert round_to(x, TF32).tolist() == [1 + 2.0**-10, 1.0, 1 + 2.0**-9, 7.6015625]


def test_unknown_names_list_the_known():
    with pytest.raises(UsageError, match="fp4_e2m1"):
        formats.format_named("fp4")
    with pytest.raises(UsageError, match="stochastic"):
        encode(torch.tensor([1.0]), E4M3, "nearest-even")
