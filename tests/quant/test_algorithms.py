"""RTN, GPTQ and AWQ on made-up layers: against slower ways to the same numbers, and on awkward inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.quant.measured import drawn, snr_db
from workbench.errors import UsageError
from workbench.quant.algorithms import awq, gptq, rtn
from workbench.quant.algorithms.gptq import ORDERS
from workbench.quant.args import QuantArgs
from workbench.quant.core import fake_quant, observed, qparams
from workbench.quant.presets import PRESETS, preset
from workbench.quant.stats import InputStats

W4 = preset("w4a16", 32).weights
W3 = replace(W4, bits=3)


def inputs(tokens: int = 600, channels: int = 96, seed: int = 0) -> torch.Tensor:
    """Channels that go together and differ in size, as a model's do."""
    mixed = drawn(tokens, channels, seed=seed) @ (torch.eye(channels) + drawn(channels, channels, seed=9) / 8)
    return mixed * drawn(channels, seed=10).exp()


def seen(x: torch.Tensor) -> InputStats:
    stats = InputStats(x.shape[-1])
    for part in x.split(150):
        stats.add(part)
    return stats


X = inputs()
STATS = seen(X)
W = drawn(40, 96, seed=1)


def output_error(weight: torch.Tensor, x: torch.Tensor = X) -> float:
    return float((x.double() @ (weight - W).double().T).square().sum() / (x.double() @ W.double().T).square().sum())


def test_statistics_are_sums_over_tokens_that_count():
    x = inputs(20).reshape(4, 5, 96)
    mask = drawn(4, 5, seed=2) > 0
    stats = InputStats(96)
    stats.add(torch.where(mask[..., None], x, 1e4), mask)
    kept = x[mask].double()
    assert stats.tokens == len(kept)
    assert torch.allclose(stats.hessian, 2 / len(kept) * kept.T @ kept, rtol=1e-4, atol=1e-4)
    assert torch.allclose(stats.mean_magnitude, kept.abs().mean(0).float(), rtol=1e-5)
    off = drawn(7, 96, seed=3)
    assert stats.error([off]) == pytest.approx(float((kept @ off.double().T).square().sum()), rel=1e-4)
    with pytest.raises(ValueError, match="bfloat16 or float32"):
        stats.add(torch.full((1, 96), torch.inf))


def test_reports_say_what_happened_to_weight_and_output():
    made, told = rtn(W, W4, STATS, "layer.q")
    back = made.dequantize()
    assert torch.equal(back, fake_quant(W, W4)) and told.name == "layer.q" and told.fallbacks == ()
    assert told.snr_db == pytest.approx(snr_db(W, back)) and told.output_error == pytest.approx(output_error(back))
    assert rtn(W, W4)[1].output_error is None


def one_after_the_other(weight, hessian, args, params, group_of):
    """GPTQ by its definition: after each column the best values of all that are left are solved for anew, float64."""
    weight = weight.double()
    now, kept = weight.clone(), torch.empty_like(weight)
    inputs_ = weight.shape[1]
    for j in range(inputs_):
        step, zero = params.step[:, group_of[j]].double(), params.zero[:, group_of[j]].double()
        q = ((now[:, j] / step).float().round() + zero).clamp(args.min, args.max)
        kept[:, j] = (q - zero) * step
        done, left = slice(0, j + 1), slice(j + 1, inputs_)
        if j + 1 < inputs_:
            off = weight[:, done] - kept[:, done]
            solved = torch.linalg.solve(hessian[left, left], hessian[left, done])
            now[:, left] = weight[:, left] + off @ solved.T
    return kept.float()


@pytest.mark.parametrize("group", [-1, 32])
def test_gptq_is_the_best_correction_after_every_column(group):
    """With scales from before, so that both ways round on the same grid."""
    args = preset("w4a16", group).weights
    params = qparams(*observed(W, args), args)
    hessian = STATS.hessian
    perm = torch.argsort(hessian.diagonal(), descending=True, stable=True)
    damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(96)
    width = 96 if group == -1 else group
    slow = torch.empty_like(W)
    slow[:, perm] = one_after_the_other(W[:, perm], damped[perm][:, perm], args, params, (perm // width).tolist())
    fast = gptq(W, STATS, args, "static")[0].dequantize()
    assert (fast != slow).float().mean() < 0.005, "but for ties that fall the other way"
    assert output_error(fast) == pytest.approx(output_error(slow), rel=0.02)


@pytest.mark.parametrize(
    "args", [W4, W3, preset("w4a16", -1).weights, PRESETS["mxfp4"].weights, PRESETS["nvfp4"].weights]
)
@pytest.mark.parametrize("order", ORDERS)
def test_gptq_loses_less_than_rounding_to_nearest(order, args):
    made, told = gptq(W, STATS, args, order)
    assert told.fallbacks == () and told.damping == 0.01 and told.dead_columns == 0
    assert told.output_error == pytest.approx(output_error(made.dequantize()), rel=1e-4)
    assert told.output_error < 0.8 * rtn(W, args, STATS)[1].output_error
    assert (made.group_of is None) == (order != "group" or args.strategy != "group")


def test_groups_in_act_order_are_looked_up():
    made, _ = gptq(W, STATS, W4, "group")
    counts = torch.bincount(made.group_of)
    assert counts.tolist() == [32, 32, 32] and not made.group_of.diff().ge(0).all()
    order = torch.argsort(STATS.hessian.diagonal(), descending=True, stable=True)
    assert torch.equal(made.group_of[order], torch.arange(96) // 32)
    zero = made.params.zero[:, made.group_of]
    by_hand = (made.q.float() - zero) * made.params.scale[:, made.group_of]
    assert torch.equal(made.dequantize(), by_hand)


def test_a_groups_scale_sees_every_update_before_it():
    """Groups that do not divide GPTQ's usual 128 columns: 48, 72 and 96 of 144."""
    x = inputs(channels=144, tokens=900)
    weight = drawn(24, 144, seed=4)
    for group in (48, 72, 144):
        args = preset("w4a16", group).weights
        made, told = gptq(weight, seen(x), args)
        assert told.output_error < rtn(weight, args, seen(x))[1].output_error
        back = made.dequantize()
        assert torch.equal(fake_quant(back, args, made.params), back)


def test_dead_and_doubled_columns_and_few_tokens():
    x = X.clone()
    x[:, 5] = 0
    x[:, 7] = x[:, 6]
    for tokens in (600, 20):
        stats = seen(x[:tokens])
        for order in ORDERS:
            made, told = gptq(W, stats, W4, order)
            back = made.dequantize()
            assert told.dead_columns == 1 and told.fallbacks == () and back.isfinite().all()
            assert back[:, 5].eq(0).all()
        result = awq({"w": W}, stats, W4)
        assert result.weights["w"].dequantize().isfinite().all() and result.channel_scale.isfinite().all()
        assert result.channel_scale.gt(0).all()


def test_a_hessian_that_cannot_be_factored_is_counted_and_rounded_to_nearest():
    stats = seen(X)
    stats.gram = -stats.gram
    made, told = gptq(W, stats, W4, name="layer.o")
    assert torch.equal(made.dequantize(), fake_quant(W, W4))
    assert len(told.fallbacks) == 1 and "layer.o: rounded to nearest" in told.fallbacks[0]
    made, told = gptq(W, InputStats(96), W4)
    assert "0 tokens" in told.fallbacks[0] and torch.equal(made.dequantize(), fake_quant(W, W4))


def test_more_damping_is_told():
    stats = seen(X)
    stats.gram -= 0.05 * stats.gram.diagonal().mean() * torch.eye(96)  # no longer positive definite
    _, told = gptq(W, stats, W4)
    assert told.damping in (0.1, 1.0) and told.fallbacks == ()


@pytest.mark.parametrize(
    ("args", "at_most"), [(W4, 0.8), (W3, 0.8), (PRESETS["mxfp4"].weights, 0.98)], ids=["w4", "w3", "mxfp4"]
)
def test_awq_loses_less_than_rounding_to_nearest(args, at_most):
    result = awq({"a": W[:24], "b": W[24:]}, STATS, args)
    parts = [result.weights[name].dequantize() / result.channel_scale for name in ("a", "b")]
    error = output_error(torch.cat(parts))
    assert error < at_most * output_error(fake_quant(W, args))
    # Scales that are powers of two swallow what channels are scaled by: what is left is the cutting of ranges.
    assert (result.power is None) == (args.scale == "e8m0")
    sizes = {name: float((X @ part.T).square().sum()) for name, part in (("a", W[:24]), ("b", W[24:]))}
    told = sum(result.reports[name].output_error * size for name, size in sizes.items())
    assert told / float((X @ W.T).square().sum()) == pytest.approx(error, rel=1e-3)


def test_awqs_scale_is_the_best_of_all_powers():
    """Every power tried again on the tokens themselves."""
    group = W.abs().reshape(40, 3, 32)
    share = (group / (group.amax(-1, keepdim=True) + 1e-6)).reshape(40, 96).mean(0)
    errors = {None: output_error(fake_quant(W, W4))}
    for i in range(20):
        s = X.abs().mean(0) ** (i / 20) / (share ** (1 - i / 20) + 1e-4)
        s = s / (s.max() * s.min()).sqrt()
        errors[i / 20] = output_error(fake_quant(W * s, W4) / s)
    assert awq({"w": W}, STATS, W4, clip=()).power == min(errors, key=errors.get)


def test_awq_makes_nothing_worse_where_inputs_cannot_be_divided():
    result = awq({"w": W}, STATS, W4, scale=False, clip=())
    assert result.power is None and result.channel_scale.eq(1).all()
    assert torch.equal(result.weights["w"].dequantize(), fake_quant(W, W4))


def test_cutting_ranges_lessens_the_error_of_each_groups_part():
    wide = W.clone()
    wide[:, 3] *= 6
    for args in (W3, preset("w4a16", -1).weights):
        plain = fake_quant(wide, args)
        cut = awq({"w": wide}, STATS, args, scale=False).weights["w"].dequantize()
        width = args.block_size(W.shape)[1]
        for g in range(0, 96, width):
            part = slice(g, g + width)
            before, after = (X[:, part] @ (w - wide)[:, part].T for w in (plain, cut))
            assert (after.square().sum(0) <= before.square().sum(0) * 1.0001).all()
        assert not torch.equal(plain, cut)
    kept = awq({"w": wide}, STATS, W3, scale=False, clip=("other",)).weights["w"]
    assert torch.equal(kept.dequantize(), fake_quant(wide, W3))


def test_a_silent_channel_and_a_zero_weight_make_no_nan():
    x, weight = X.clone(), W.clone()
    x[:, 4], weight[:, 4], weight[:, 8], weight[3] = 0, 0, 0, 0
    result = awq({"w": weight}, seen(x), W4)
    assert result.channel_scale.isfinite().all() and result.weights["w"].dequantize().isfinite().all()
    assert gptq(weight, seen(x), W4)[0].dequantize()[3].eq(0).all()
    nothing = awq({"w": weight}, InputStats(96), W4)
    assert nothing.power is None and nothing.weights["w"].dequantize().isfinite().all()


def test_refusals():
    with pytest.raises(UsageError, match="none, static, group"):
        gptq(W, STATS, W4, "weight")
    for act in (lambda a: gptq(W, STATS, a, name="layer.q"), lambda a: rtn(W, a, name="layer.q")):
        with pytest.raises(UsageError, match=r"layer\.q: groups of 64 do not divide its 96 inputs; groups of 32"):
            act(QuantArgs(4, group_size=64))
    with pytest.raises(UsageError, match="not of a block"):
        gptq(W, STATS, QuantArgs(8, strategy="block", block_structure=(8, 8)))
