"""What rounding costs: the middle row, the rule of the peak, errors in two parts, sums that stand still."""

from __future__ import annotations

import math

import pytest
import torch

from tests.quant.measured import drawn, snr_db
from workbench.errors import UsageError
from workbench.lab.rounding_study import (
    TENSOR,
    clip_errors,
    counted_up,
    distribution_table,
    loss_table,
    middle_snr,
    peak,
    samples,
    snr_by_format,
)
from workbench.quant.args import QuantArgs
from workbench.quant.core import fake_quant, observed, qparams
from workbench.quant.observers import observe

ROWS4 = QuantArgs(4, strategy="channel", symmetric_range="narrow")


def test_the_middle_row_is_not_deceived_by_a_giant() -> None:
    x = drawn(9, 64)
    x[0, 0] = 1e4
    back = fake_quant(x, TENSOR["INT8"])
    assert snr_db(x, back) > 30 and middle_snr(x, back) == 0.0
    rows = [snr_db(x[i], back[i]) for i in range(9)]
    assert middle_snr(x, back) == pytest.approx(sorted(rows)[4])


def test_rows_of_zeros_do_not_count() -> None:
    x = drawn(4, 8)
    x[:2] = 0
    assert middle_snr(x, 0.9 * x) == pytest.approx(20)
    with pytest.raises(UsageError, match="all rows are 0"):
        middle_snr(torch.zeros(2, 3), torch.ones(2, 3))
    assert middle_snr(x, x) == math.inf


@pytest.mark.parametrize(("name", "codes"), [("INT8", 127), ("INT4", 7)])
def test_whole_numbers_follow_the_rule_of_the_peak(name: str, codes: int) -> None:
    """10 log₁₀ (12 · codes²) − 20 log₁₀ peak, as long as the step is smaller than most numbers."""
    for x in samples(1).values():
        rule = 10 * math.log10(12 * codes**2) - 20 * math.log10(peak(x))
        assert middle_snr(x, fake_quant(x, TENSOR[name])) == pytest.approx(rule, abs=0.6)


def test_floats_do_not_ask_for_the_peak() -> None:
    x = samples()["normal"]
    giant = x.clone()
    giant[0, 0] = 100
    plain, with_giant = (snr_by_format({"x": one}, TENSOR)["x"] for one in (x, giant))
    assert plain["FP8 E4M3"] == pytest.approx(with_giant["FP8 E4M3"], abs=0.5) == pytest.approx(31.6, abs=0.5)
    assert plain["INT8"] > with_giant["INT8"] + 20


def test_changes_hold_for_all_formats() -> None:
    numbers = {"x": drawn(16, 64) * torch.logspace(0, 3, 16)[:, None]}
    one, row = snr_by_format(numbers, TENSOR)["x"], snr_by_format(numbers, TENSOR, strategy="channel")["x"]
    assert list(one) == list(TENSOR) and all(row[name] > one[name] - 0.5 for name in TENSOR)
    assert row["INT8"] > one["INT8"] + 15


def test_both_errors_add_up_to_what_the_engine_loses() -> None:
    x, shares = drawn(8, 96), [1.0, 0.8, 0.6, 0.4]
    found = clip_errors(x, ROWS4, shares)
    low, high = observed(x, ROWS4)
    for share in shares:
        back = fake_quant(x, ROWS4, qparams(low * share, high * share, ROWS4))
        assert 10 * math.log10(1 / found[share].both) == pytest.approx(snr_db(x, back), abs=1e-6)
    assert [found[share].rounding for share in shares] == sorted((one.rounding for one in found.values()), reverse=True)
    assert [found[share].clamping for share in shares] == sorted(one.clamping for one in found.values())
    assert found[1.0].clamping == 0


def test_clamped_is_what_lies_beyond_the_last_code() -> None:
    x = torch.tensor([[7.0, -7.0, 5.2, 4.8, 1.0]])
    errors = clip_errors(x, ROWS4, [5 / 7])[5 / 7]  # a scale of 5/7, so codes end at 5
    assert errors.clamping == pytest.approx((2 * 2.0**2 + 0.2**2) / float(x.square().sum()))


def test_the_best_share_is_the_observers_range() -> None:
    x = drawn(1, 256)
    shares = [1 - i / 100 for i in range(80)]
    found = clip_errors(x, ROWS4, shares)
    best = min(shares, key=lambda share: found[share].both)
    _, kept = observe(x, QuantArgs(4, strategy="channel", symmetric_range="narrow", observer="mse"))
    assert float(kept) / float(observed(x, ROWS4)[1]) == pytest.approx(best, abs=0.1)  # the observer's norm is 2.4


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(UsageError, match="not for fp8_e4m3"):
        clip_errors(drawn(2, 8), TENSOR["FP8 E4M3"], [1.0])
    with pytest.raises(UsageError, match="share=0"):
        clip_errors(drawn(2, 8), ROWS4, [0])


def test_a_sum_stands_still_where_the_step_becomes_2() -> None:
    """2 to the number of mantissa bits and one: from there on 1 is half a step, and the even neighbour is below."""
    assert counted_up("bf16", "nearest", 300) == 256 and counted_up("fp8_e4m3", "nearest", 40) == 16
    assert counted_up("fp16", "nearest", 300) == 300
    assert counted_up("bf16", "stochastic", 300) == pytest.approx(300, abs=5)


def test_tables_say_what_was_measured() -> None:
    x = torch.tensor([[3.0, -4.0], [500.0, 0.0]])
    row = distribution_table({"x": x}, 448, "said").rows[0]
    assert (
        row[1] == "500" and row[3] == "1 of 4" and float(row[2]) == pytest.approx(500 / math.sqrt(250025 / 4), abs=0.1)
    )
    back = torch.tensor([[0.0, 0.0], [450.0, 0.0]])
    made = loss_table(x, {"way": back}, {"way": 0.25}).rows[0]
    assert made[0] == "way" and made[2] == "67%" and made[4] == "0.2500"
    assert float(made[1]) == pytest.approx(snr_db(x, back), abs=0.06) and made[3] == "0.0"
