"""What the bytes of weights mean, and how floats become such bytes."""

from __future__ import annotations

import pytest
import torch

import kernels
from kernels.reference.weights import Weight, float_weight, pack, stack, unpack
from tests.kernels.builds import one_build  # noqa: F401
from tests.kernels.weight_formats import KINDS, WHOLE, drawn, random_weight, written_out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("into", [64, 192])
def test_unpacked_equals_what_is_written(kind: str, into: int) -> None:
    weight = random_weight(kind, 5, into, seed=into)
    assert unpack(weight).dtype == torch.float32
    torch.testing.assert_close(unpack(weight).double(), written_out(weight), rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("one_build")
@pytest.mark.parametrize("kind", KINDS)
def test_embedding_gives_the_rows(kind: str) -> None:
    weight = random_weight(kind, 11, 64)
    ids = torch.tensor([3, 0, 10, 3])
    for maker in kernels.available("embedding"):
        rows = kernels.embedding(weight, ids, maker=maker)
        torch.testing.assert_close(rows.float(), unpack(weight)[ids], rtol=1e-6, atol=1e-7)


def test_int8_rounds_to_the_nearest_of_127_steps() -> None:
    matrix = drawn(7, 50)
    weight = pack(matrix, "int8")
    assert weight.data.shape == (7, 64) and not weight.data[:, 50:].any()
    step = matrix.abs().amax(1, keepdim=True) / 127
    assert ((unpack(weight) - matrix).abs() <= step / 2 * 1.0001).all()
    assert weight.data.abs().amax(1).tolist() == [127] * 7


@pytest.mark.parametrize(("format", "group"), [("int4", 32), ("int4", 64), ("q8_0", 32)])
def test_groups_round_to_the_nearest_of_their_own_steps(format: str, group: int) -> None:
    matrix = drawn(6, 128)
    matrix[2, 32:64] = matrix[2, 32:64].abs() + 1  # all of one sign: 0 must still be representable
    grouped = matrix.reshape(6, -1, group)
    span = grouped.amax(-1).clamp_min(0) - grouped.amin(-1).clamp_max(0)
    step = span / 15 if format == "int4" else grouped.abs().amax(-1) / 127
    error = (unpack(pack(matrix, format, group)) - matrix).reshape(grouped.shape).abs()
    # Scales are kept in 16 bits, so ends may be missed by a thousandth of the span.
    assert (error <= step[..., None] / 2 + span[..., None] * 1.5e-3).all()


@pytest.mark.parametrize("format", ["int8", "int4", "q8_0"])
@pytest.mark.parametrize("value", [0.0, 3.0, -3.0])
def test_rows_of_one_value(format: str, value: float) -> None:
    """No scale is zero over zero, and what a scale can say exactly stays as it is."""
    matrix = torch.full((2, 64), value)
    torch.testing.assert_close(unpack(pack(matrix, format)), matrix, rtol=2e-3, atol=0)


def test_a_matrix_of_one_format_packs_again_to_itself() -> None:
    """Four bits of scale and offset a group: packed a second time in the same format nothing more is lost."""
    once = unpack(pack(drawn(16, 256), "int4"))
    torch.testing.assert_close(unpack(pack(once, "int4")), once, rtol=0, atol=4e-3)


@pytest.mark.parametrize(
    ("format", "group", "into", "reason"),
    [
        ("int4", 32, 48, "rows of 48 are no whole groups of 32"),
        ("int4", 16, 64, "int4 has groups of 32 or 64, not 16"),
        ("q4_1", 32, 64, "not 'q4_1'"),
        ("int3", 32, 64, "not 'int3'"),
    ],
)
def test_what_cannot_be_packed_is_told(format: str, group: int, into: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        pack(drawn(4, into), format, group)


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_rows_are_the_rows(kind: str) -> None:
    parts = [random_weight(kind, rows, 64, seed=rows) for rows in (3, 1, 4)]
    stacked = stack(parts)
    assert stacked is not None and stacked.shape == (8, 64)
    assert torch.equal(unpack(stacked), torch.cat([unpack(part) for part in parts]))
    assert stacked.num_bytes == sum(part.num_bytes for part in parts)


def test_different_formats_do_not_stack() -> None:
    assert stack([random_weight("int8", 2, 64), random_weight("q8_0", 2, 64)]) is None
    assert stack([random_weight("int4-32", 2, 64), random_weight("int4-64", 2, 64)]) is None


def test_bytes() -> None:
    """Bits a weight, scales included."""
    bits = {kind: random_weight(kind, 64, 1024).num_bytes * 8 / (64 * 1024) for kind in KINDS}
    assert bits == {
        "float32": 32.0, "float16": 16.0, "bfloat16": 16.0, "int8": 8 + 32 / 1024, "int4-32": 5.0, "int4-64": 4.5,
        "uint4-32": 5.0, "uint4-64": 4.5, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5.0,
    }  # fmt: skip
    assert isinstance(float_weight(drawn(2, 2)), Weight) and set(WHOLE) < set(KINDS)
