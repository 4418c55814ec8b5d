"""A reader's kernel compiled for a GPU that is not here: its figures, its instructions, and what is refused."""

from __future__ import annotations

import pytest

from workbench.errors import UsageError
from workbench.lab.exercises import exercise
from workbench.lab.own_kernel import OwnKernel, agreed, beside, compile_own

pytest.importorskip("triton")
POINTERS = dict.fromkeys(("x_ptr", "out_ptr"), "*bf16")
NORM = exercise("06", "add-rms-norm").function


def twice(x_ptr, out_ptr, BLOCK: tl.constexpr):  # noqa: F821
    column = tl.arange(0, BLOCK)  # noqa: F821
    tl.store(out_ptr + column, tl.load(x_ptr + column) * 2)  # noqa: F821


def unknown(x_ptr, out_ptr, BLOCK: tl.constexpr):  # noqa: F821
    tl.store(out_ptr, tl.no_such_thing(x_ptr))  # noqa: F821


@pytest.fixture(scope="module")
def made() -> OwnKernel:
    return compile_own(twice, POINTERS, {"BLOCK": 1024}, tuple(POINTERS))


def test_one_trip_in_and_one_out(made: OwnKernel) -> None:
    assert (made.name, made.arch, made.made.warps) == ("twice", "sm_90", 4)
    assert made.made.loads == {"128": 1} and made.made.stores == {"128": 1} and not made.made.uses_local()
    [load], [store] = made.instructions("LDG"), made.instructions("STG")
    assert "LDG.E.128" in load and "STG.E.128" in store
    assert len(made.instructions()) > len(made.instructions("LDG", "STG")) == 2


def test_what_is_not_said_to_be_a_multiple_of_16_is_read_in_smaller_pieces() -> None:
    assert max(map(int, compile_own(twice, POINTERS, {"BLOCK": 1024}, ()).made.loads)) < 128


def test_a_function_that_does_not_compile_says_why() -> None:
    with pytest.raises(UsageError, match=r"unknown does not compile for sm_90: .*no_such_thing"):
        compile_own(unknown, POINTERS, {"BLOCK": 16}, ())


def test_beside_the_house(made: OwnKernel) -> None:
    table = beside(made, "norm.bf16-residual-576")
    house = agreed("norm.bf16-residual-576", "sm_90")
    assert table.rows[0][0] == "yours" and table.rows[0][4] == "1 of 16 bytes"
    assert len(table.rows) == (1 if house is None else 2)
    if house is not None:
        assert table.rows[1][2] == house.registers
    assert agreed("no.such", "sm_90") is None and len(beside(made, "no.such").rows) == 1
