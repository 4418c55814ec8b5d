"""Layers quantized and judged on text that they were not calibrated with: by hand on a small reader, then the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from workbench.errors import UsageError
from workbench.lab.quantized_layers import Judged, Reader, first_layers, judged, layer_errors, mean_error
from workbench.lab.quantized_tables import awq_table, error_table, group_lines, group_table
from workbench.quant.args import QuantArgs
from workbench.quant.core import fake_quant
from workbench.quant.stats import InputStats

W4 = QuantArgs(4, group_size=64, symmetric=False, scale="fp16")


def reader(divisible: bool = True, name: str = "0.v_proj") -> Reader:
    """Inputs of which some channels are large, and which go together."""
    draw = torch.Generator().manual_seed(5)
    mix = torch.randn(64, 576, generator=draw) * torch.linspace(0.1, 3, 576)
    stats = []
    for _ in range(2):
        one = InputStats(576)
        one.add(torch.randn(1500, 64, generator=draw) @ mix + torch.randn(1500, 576, generator=draw) / 10)
        stats.append(one)
    return Reader("qkv", divisible, {name: torch.randn(32, 576, generator=draw)}, *stats)


def test_an_error_is_that_of_outputs_on_the_other_text() -> None:
    one = reader()
    weight = one.weights["0.v_proj"]
    back = fake_quant(weight, W4)
    # tr(Δ Σxxᵀ Δᵀ), written out
    wanted = torch.trace((back - weight) @ one.unseen.gram @ (back - weight).T) / torch.trace(
        weight @ one.unseen.gram @ weight.T
    )
    assert judged(one, "rtn", W4)["0.v_proj"].error == pytest.approx(float(wanted), rel=1e-3)
    swapped = one._replace(unseen=one.seen)
    assert judged(swapped, "rtn", W4)["0.v_proj"].error != judged(one, "rtn", W4)["0.v_proj"].error


def test_what_looks_at_inputs_beats_rounding() -> None:
    errors = {how: layer_errors([reader()], how, replace(W4, bits=3)) for how in ("rtn", "gptq", "awq")}
    assert mean_error(errors["gptq"]) < mean_error(errors["rtn"])
    assert mean_error(errors["awq"]) < mean_error(errors["rtn"])
    [told] = errors["awq"].values()
    assert told.cut > 0 and errors["rtn"]["0.v_proj"].cut == 0


def test_what_cannot_be_divided_is_not_scaled_and_queries_are_not_cut() -> None:
    assert judged(reader(divisible=False), "awq", W4)["0.v_proj"].power is None
    assert judged(reader(name="0.q_proj"), "awq", W4)["0.q_proj"].cut == 0


def test_tables_and_lines() -> None:
    errors = {(4, "rtn"): {"a": Judged(0.0123), "b": Judged(0.5)}, (3, "awq"): {"a": Judged(0.02), "b": Judged(1)}}
    assert error_table(errors).rows == [["a", "1.23", "2.00"], ["b", "50.00", "100.00"]]
    assert awq_table({"a": Judged(0.1, 0.25, 0.5), "o": Judged(0.1)}).rows[1] == ["o", "not scaled", "0%"]
    rows = {row[0]: row for row in group_table([reader()], "0.v_proj", W4).rows}
    assert rows["128"][1] == "refused" and str(rows["128"][2]).startswith("0.v_proj: groups of 128 do not divide")
    assert rows["64"][1] == "4.31" and float(str(rows["64"][2])) < float(str(rows["a row"][2]))
    lines = group_lines([reader()], "0.v_proj", W4)
    assert [*lines] == ["with zero points", "symmetric"]
    assert [*lines["symmetric"]] == [4 + 16 / width for width in (576, 192, 64, 32)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: judged(reader(), "rnt", W4), "algorithm 'rnt' is not known"),
        (lambda: group_table([reader()], "9.x", W4), None),
        (lambda: group_lines([reader()], "9.x", W4), "'9.x' is not here; choose from 0.v_proj"),
        (lambda: first_layers(64, readers=("qvk",)), "choose from qkv, o"),
        (lambda: first_layers(64, layers=0), "layers=0"),
    ],
)
def test_what_is_not_known_is_refused(call: Callable[[], Any], message: str | None) -> None:
    if message is None:
        assert all(row[1] == "refused" for row in call().rows)
        return
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.slow
def test_the_models_own_layers() -> None:
    found = first_layers(600, 1, ("qkv", "o"))
    assert [one.name for one in found] == ["qkv", "o"] and [one.divisible for one in found] == [True, False]
    assert [*found[0].weights] == ["0.q_proj", "0.k_proj", "0.v_proj"]
    assert found[0].seen.tokens == found[0].unseen.tokens == 768
    assert not torch.allclose(found[0].seen.gram, found[0].unseen.gram)
