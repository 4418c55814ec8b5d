"""Each seeded fault is found, and nothing else; tables keep reasons and name what changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels.compile import rules, table
from kernels.compile.made import Made
from kernels.triton.variants import WANTS, Variant


def _product(x_ptr, out_ptr): ...


VARIANT = Variant(
    name="v",
    kernel=SimpleNamespace(fn=_product),
    signature={"x_ptr": "*bf16", "out_ptr": "*bf16"},
    wants=("mma", "wgmma", "tma", "ldg.128", "stg.128"),
    most_registers=168,
)
SOUND = Made(
    registers=168,
    warps=8,
    shared=98304,
    matrix={"HGMMA": 8},
    copies={"UTMALDG": 2},
    loads={"128": 4, "32": 1},
    stores={"128": 8},
)


def test_a_sound_kernel_has_no_fault():
    assert rules.broken(VARIANT, "sm_90", SOUND, None) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"local_bytes": 80}, "spills: 80 bytes"),
        ({"local_accesses": 3}, "3 instructions"),
        ({"shared": 227 * 1024 + 1}, "shared memory: 232449 bytes a block, sm_90 has 232448"),
        ({"registers": 169}, "169 registers a thread, and it may have 168"),
        ({"tensor_columns": 32}, "tensor memory: 32"),
        ({"matrix": {"HMMA": 64}}, "wants wgmma, and the code has HMMA, UTMALDG"),
        ({"copies": {"LDGSTS": 2}}, "wants tma"),
        ({"loads": {"64": 8, "32": 1}}, "wants ldg.128, and the code has 64-bit loads"),
        ({"stores": {}}, "wants stg.128"),
    ],
)
def test_each_fault_is_found(changed, said):
    (fault,) = rules.broken(VARIANT, "sm_90", dataclasses.replace(SOUND, **changed), None)
    assert said in fault


def test_more_registers_than_an_sm_has():
    unlimited = dataclasses.replace(VARIANT, most_registers=None)
    (fault,) = rules.broken(unlimited, "sm_90", dataclasses.replace(SOUND, registers=255, warps=16), None)
    assert "255 registers × 16 warps" in fault


def test_no_matrix_instruction_at_all_is_two_wants_unmet():
    faults = rules.broken(VARIANT, "sm_90", dataclasses.replace(SOUND, matrix={}), None)
    assert [fault.split(",")[0] for fault in faults] == ["wants mma", "wants wgmma"]


def test_limits_are_the_chips_own():
    between = dataclasses.replace(SOUND, shared=164 * 1024)
    assert rules.broken(VARIANT, "sm_90", between, None) == []
    assert [fault[:13] for fault in rules.broken(VARIANT, "sm_80", between, None)] == ["shared memory"]


@pytest.mark.parametrize(
    ("want", "made"),
    [
        ("mma", {"matrix": {"IMMA": 1}}),
        ("wgmma", {"matrix": {"QGMMA": 1}}),
        ("tcgen05", {"matrix": {"UTCQMMA": 1}}),
        ("cp.async", {"copies": {"LDGSTS": 1}}),
        ("tma", {"copies": {"UTMALDG": 1}}),
        ("ldg.128", {"loads": {"256": 1}}),
        ("stg.128", {"stores": {"128": 1}}),
    ],
)
def test_every_want_can_be_met(want, made):
    assert want in WANTS
    assert rules.has(want, Made(registers=1, warps=1, shared=0, **made))
    assert not rules.has(want, Made(registers=1, warps=1, shared=0))


def test_local_memory_with_a_reason_is_excused_and_the_reason_outlives_an_update():
    spilling = dataclasses.replace(SOUND, local_bytes=80)
    row = {**spilling.brief(), "reason": "the last tile of 255 registers, once a block"}
    assert rules.broken(VARIANT, "sm_90", spilling, row) == []
    assert table.differences(row, spilling) == []
    worse = dataclasses.replace(SOUND, local_bytes=96)
    assert table.differences(row, worse) == ["local_bytes 80 → 96"]
    assert table.row_of(worse, row)["reason"] == row["reason"]
    assert "reason" not in table.row_of(SOUND, row)
    assert rules.broken(VARIANT, "sm_90", spilling, {**row, "reason": " "}) != []


def test_a_change_names_value_and_value():
    now = dataclasses.replace(SOUND, registers=191, copies={}, loads={"64": 8})
    assert table.differences(SOUND.brief(), now) == [
        "registers 168 → 191",
        "copies 2 × UTMALDG → none",
        "loads 4 × 128, 1 × 32 → 8 × 64",
    ]


def test_a_table_is_one_line_a_chip_and_comes_back_the_same(tmp_path):
    path = tmp_path / "1.0.json"
    old = {"gone.v": {"sm_80": SOUND.brief()}, "b.v": {"sm_100": SOUND.brief(), "sm_80": {**SOUND.brief(), "x": 1}}}
    made = [("b.v", "sm_90", SOUND), ("a.v", "sm_90", SOUND)]
    launched = {("b.v", "sm_80"), ("b.v", "sm_90"), ("a.v", "sm_90")}
    table.save(path, table.updated(old, made, launched))
    again = table.load(path)
    assert {name: list(rows) for name, rows in again.items()} == {"a.v": ["sm_90"], "b.v": ["sm_80", "sm_90"]}
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2 + 2 * 2 + 3
    everything = table.updated(old, made, None)
    assert list(everything["b.v"]) == ["sm_80", "sm_90", "sm_100"] and "gone.v" in everything


def test_figures_come_back_from_their_brief_form():
    assert Made.of(SOUND.brief()) == SOUND
    with pytest.raises(TypeError):
        Made.of({**SOUND.brief(), "speed": 1})


@pytest.mark.parametrize("text", ["", "[]", '{"a.v": 5}', '{"a.v": {"sm_80": 5}}', '{"a.v": {"sm_80": {}', "\xff"])
def test_what_is_no_table_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "9.9.9.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"9\.9\.9\.json is no table"):
        table.load(path)


def test_a_folder_is_no_table_and_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no table"):
        table.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        table.load(tmp_path / "none.json")
