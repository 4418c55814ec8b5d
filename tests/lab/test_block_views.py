"""Block formats as tables: scales by hand, figures as measured apart, bits counted."""

from __future__ import annotations

import pytest
import torch

from tests.quant.measured import drawn, snr_db
from workbench.lab.block_views import four_bits, four_bits_table, scale_modes_table
from workbench.quant.blocks import NVFP4, from_blocks, to_blocks


def test_scales_by_hand() -> None:
    """floor(log₂ 5) = floor(log₂ 6.5) = 2 is E2M1's own top power, so the scale is 1; 7.6 rounds up to 8 with even."""
    rows = {row[0]: row[1:] for row in scale_modes_table([(5, 0.4), (6.5, 0.4), (7.6, 0.4)]).rows}
    small, large = "scale 1: 6 and 0.5", "scale 2: 8 and 0"
    assert rows["floor"] == ["scale 1: 4 and 0.5", small, small]
    assert rows["even"] == ["scale 1: 4 and 0.5", small, large]
    assert rows["ceil"] == ["scale 2: 4 and 0", "scale 2: 6 and 0", large]
    assert rows["rceil"] == ["scale 1: 4 and 0.5", "scale 2: 6 and 0", large]


def test_a_normal_distribution_has_the_figures_of_the_field() -> None:
    """18.8 dB of MXFP4, 20.4 of NVFP4, 19.8 of whole numbers for each 64."""
    x = drawn(256, 1024)
    found = four_bits(x)
    assert found["MXFP4, floor"] == pytest.approx(18.8, abs=0.15)
    assert found["NVFP4"] == pytest.approx(20.4, abs=0.15) == snr_db(x, from_blocks(to_blocks(x, NVFP4)))
    assert found["INT4 by 64"] == pytest.approx(19.8, abs=0.15)


def test_bits_count_the_share_of_the_scales() -> None:
    table = four_bits_table({"x": four_bits(torch.eye(64))}, "said")
    assert {row[0]: row[1] for row in table.rows} == {
        **{f"MXFP4, {way}": "4.25" for way in ("floor", "even", "ceil", "rceil")},
        "NVFP4": "4.5",
        "INT4 by 64": "4.25",
    }
    assert table.caption == "said" and table.head == ["format", "bits each", "dB, x"]
