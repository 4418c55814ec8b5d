"""Checkpoint formats of 4- and 8-bit weights: what is written comes back, is what it says, and the same in all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.quant.written_words import awq_weight, gptq_weight, packed_weight, random_weight
from workbench.errors import UsageError, WorkbenchError
from workbench.quant.args import QuantArgs
from workbench.quant.codecs import CODECS, Awq, CompressedTensors, Gptq, codec_of
from workbench.quant.codecs.words import pack, unpack
from workbench.quant.core import QParams
from workbench.quant.result import QuantizedWeight


def require_same(found: QuantizedWeight, wanted: QuantizedWeight) -> None:
    assert torch.equal(found.q, wanted.q) and torch.equal(found.params.scale, wanted.params.scale)
    assert (found.params.zero is None) == (wanted.params.zero is None)
    assert wanted.params.zero is None or torch.equal(found.params.zero, wanted.params.zero)
    assert (found.group_of is None) == (wanted.group_of is None)
    assert wanted.group_of is None or torch.equal(found.group_of, wanted.group_of)
    assert torch.equal(found.dequantize(), wanted.dequantize())


@given(st.integers(0, 2**30), st.sampled_from([4, 8]), st.integers(1, 5), st.integers(1, 19))
@settings(max_examples=40, deadline=None)
def test_words_hold_every_number(seed, bits, rows, length):
    numbers = torch.randint(0, 1 << bits, (rows, length), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(unpack(pack(numbers, bits), bits, length).long(), numbers)


def test_a_number_too_large_does_not_reach_into_its_neighbour():
    for wrong in (16, -1):
        with pytest.raises(ValueError, match="4 bits"):
            pack(torch.tensor([[0, wrong]]), 4)


@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("method", CODECS)
def test_one_weight_means_the_same_in_every_format(method, symmetric, group):
    weight = random_weight(16, 128, group, symmetric=symmetric)
    codec = CODECS[method](weight.args)
    tensors = codec.encode(weight)
    assert set(tensors) <= set(codec.ENDS) and codec.ENDS[0] in tensors
    require_same(codec.decode(tensors), weight)
    require_same(codec_of(codec.config()).decode(tensors), weight)
    written = {
        "gptq": lambda: gptq_weight(tensors, 4, plus_one=symmetric),
        "awq": lambda: awq_weight(tensors, weight.args.group_size or 128),
        "compressed-tensors": lambda: packed_weight(tensors, 4),
    }[method]()
    assert torch.equal(weight.dequantize().double(), written)
    turned = replace(weight, q=weight.q.T.contiguous().T, params=QParams(*(
        None if part is None else part.T.contiguous().T for part in weight.params[:2])))  # fmt: skip
    again = codec.encode(turned)
    assert all(part.is_contiguous() and torch.equal(part, tensors[end]) for end, part in again.items())


@pytest.mark.parametrize("codec", [CompressedTensors, Gptq])
def test_eight_bits(codec):
    weight = random_weight(8, 64, 32, bits=8)
    tensors = codec(weight.args).encode(weight)
    require_same(codec_of(codec(weight.args).config()).decode(tensors), weight)
    written = packed_weight(tensors, 8) if codec is CompressedTensors else gptq_weight(tensors, 8, plus_one=False)
    assert torch.equal(weight.dequantize().double(), written)
    with pytest.raises(UsageError, match="of 4 bits, not int of 8"):
        Awq(weight.args)


@pytest.mark.parametrize("symmetric", [False, True])
def test_both_versions_of_gptq_mean_the_same(symmetric):
    weight = random_weight(16, 64, symmetric=symmetric)
    first, second = (Gptq(weight.args, version=version) for version in (1, 2))
    old, new = first.encode(weight), second.encode(weight)
    assert not torch.equal(old["qzeros"], new["qzeros"])
    require_same(first.decode(old), weight)
    require_same(second.decode(new), weight)
    assert first.config()["checkpoint_format"] == "gptq" and second.config()["checkpoint_format"] == "gptq_v2"
    if symmetric:
        assert set(old["qzeros"].flatten().tolist()) == {0x77777777}
        assert set(new["qzeros"].flatten().tolist()) == {0x88888888 - 2**32}


def test_a_zero_of_0_wraps_around_in_version_1_and_back():
    weight = random_weight(8, 32)
    weight.params.zero.fill_(-8)  # 0 on the unsigned side
    tensors = Gptq(weight.args, version=1).encode(weight)
    assert set(tensors["qzeros"].flatten().tolist()) == {-1}
    require_same(Gptq(weight.args, version=1).decode(tensors), weight)
    assert torch.equal(gptq_weight(tensors, 4, plus_one=True), weight.dequantize().double())


@pytest.mark.parametrize(("written", "said"), [(2, 1), (1, 2)])
def test_a_symmetric_file_that_says_the_wrong_version_is_read_right(written, said):
    weight = random_weight(8, 64, symmetric=True)
    tensors = Gptq(weight.args, version=written).encode(weight)
    require_same(Gptq(weight.args, version=said).decode(tensors), weight)


def test_a_file_that_says_symmetric_and_is_not_keeps_its_zeros():
    weight = random_weight(16, 64)
    for codec in (Gptq(replace(weight.args, symmetric=True), version=2), Awq(replace(weight.args, symmetric=True))):
        tensors = type(codec)(weight.args).encode(weight)
        require_same(codec.decode(tensors), weight)
    with pytest.raises(UsageError, match="q_proj has zero points"):
        CompressedTensors(replace(weight.args, symmetric=True)).encode(weight, "q_proj")


def test_words_of_awq_by_hand():
    """AutoAWQ's order and a top nibble above 7, which a shift drags the sign of along."""
    low, high = 0x75316420, 0xFDB9ECA8 - 2**32
    tensors = {
        "qweight": torch.tensor([[low, high]] * 32, dtype=torch.int32),
        "qzeros": torch.tensor([[0, high]], dtype=torch.int32),
        "scales": torch.full((1, 16), 0.5).half(),
    }
    weight = Awq(QuantArgs(4, group_size=32, symmetric=False, scale="fp16")).decode(tensors)
    assert weight.dequantize()[:, 0].tolist() == [0.5 * i for i in range(8)] + [0.0] * 8
    assert weight.q[8:, 5].tolist() == list(range(8))


@pytest.mark.parametrize("method", CODECS)
def test_zero_points_that_are_all_0_are_kept(method):
    weight = random_weight(8, 64)
    weight.params.zero.zero_()
    codec = CODECS[method](weight.args)
    require_same(codec.decode(codec.encode(weight)), weight)


@pytest.mark.parametrize("codec", [CompressedTensors, Gptq])
def test_groups_that_are_no_neighbours(codec):
    weight = random_weight(8, 128)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    shuffled = replace(weight, q=weight.q[:, order], group_of=(torch.arange(128) // 32)[order])
    tensors = codec(weight.args, "group").encode(shuffled)
    found = codec_of(codec(weight.args, "group").config()).decode(tensors)
    require_same(found, shuffled)
    assert torch.equal(found.dequantize(), weight.dequantize()[:, order])
    # A shard of the inputs takes its columns' part of g_idx and the scales of all groups.
    part = replace(found, q=found.q[:, 64:], group_of=found.group_of[64:])
    assert torch.equal(part.dequantize(), found.dequantize()[:, 64:])
    with pytest.raises(UsageError, match=r"o_proj: .*no g_idx"):
        Awq(weight.args).encode(shuffled, "o_proj")
    end = "g_idx" if codec is Gptq else "weight_g_idx"
    with pytest.raises(WorkbenchError, match=r"o_proj.*a group below 4"):
        codec(weight.args, "group").decode({**tensors, end: tensors[end] + 1}, "o_proj")


def test_lengths_that_are_no_whole_words():
    weight = random_weight(13, 36, 12)
    require_same(CompressedTensors(weight.args).decode(CompressedTensors(weight.args).encode(weight)), weight)
    for codec in (Gptq, Awq):
        with pytest.raises(UsageError, match=r"v_proj: .*no whole words.*compressed-tensors"):
            codec(weight.args).encode(weight, "v_proj")


def test_the_last_group_of_a_gptq_file_may_be_smaller():
    whole = random_weight(8, 96)
    part = replace(whole, q=whole.q[:, :72], group_of=torch.arange(72) // 32)
    found = Gptq(whole.args).decode(Gptq(whole.args).encode(part))
    assert torch.equal(found.dequantize(), whole.dequantize()[:, :72])


def test_groups_that_do_not_divide_the_inputs_are_named():
    for codec in (CompressedTensors, Awq):
        with pytest.raises(UsageError, match=r"layers\.0\.q_proj: groups of 128 do not divide its 576 inputs"):
            codec(QuantArgs(4, group_size=128)).require_fit(576, 576, "layers.0.q_proj")


@pytest.mark.parametrize("method", CODECS)
def test_damaged_tensors_are_named(method):
    weight = random_weight(8, 64)
    codec = CODECS[method](weight.args)
    tensors = codec.encode(weight)
    scale = next(end for end in tensors if "scale" in end)
    for end in (codec.ENDS[0], scale):
        with pytest.raises(WorkbenchError, match=rf"up_proj lacks {end}"):
            codec.decode({name: t for name, t in tensors.items() if name != end}, "up_proj")
    with pytest.raises(WorkbenchError, match=rf"up_proj\.{scale} holds infinities"):
        codec.decode({**tensors, scale: torch.full_like(tensors[scale], torch.inf)}, "up_proj")
    other = CODECS[method](replace(weight.args, group_size=16))
    with pytest.raises(WorkbenchError, match=r"up_proj\..* was expected"):
        other.decode(tensors, "up_proj")


CT = CompressedTensors(QuantArgs(4, group_size=32)).config()
GPTQ = Gptq(QuantArgs(4, group_size=32)).config()
AWQ = Awq(QuantArgs(4, group_size=32, symmetric=False)).config()


def ct_with(**changes):
    group = CT["config_groups"]["group_0"]
    return {**CT, "config_groups": {"group_0": {**group, "weights": {**group["weights"], **changes}}}}


@pytest.mark.parametrize("method", CODECS)
def test_tensors_of_another_kind_or_shape_are_named(method):
    codec = CODECS[method](random_weight(16, 128, 32, symmetric=False).args)
    tensors = codec.encode(random_weight(16, 128, 32, symmetric=False))
    for end, tensor in tensors.items():
        other = tensor.int() if tensor.is_floating_point() else tensor.float()
        with pytest.raises(WorkbenchError, match=f"layer.*{'g_idx' if end == 'g_idx' else end}"):
            codec.decode({**tensors, end: other}, "layer")
    with pytest.raises(WorkbenchError, match=r"layer\."):
        codec.decode({**tensors, codec.ENDS[0]: tensors[codec.ENDS[0]].flatten()[0]}, "layer")
    if method == "compressed-tensors":
        with pytest.raises(WorkbenchError, match=r"layer.weight_shape is \[1\]"):
            codec.decode({**tensors, "weight_shape": tensors["weight_shape"][:1]}, "layer")


@pytest.mark.parametrize("codec", [CompressedTensors, Gptq])
def test_act_order_without_its_index_is_not_read_in_another_order(codec):
    """Columns would get each other's scales, and nothing would say so."""
    weight = random_weight(16, 128, 32, symmetric=False)
    shuffled = replace(weight, group_of=torch.arange(128).flip(0) // 32)
    for one in (weight, shuffled):  # one that could only be rounded to nearest has its index too
        made = codec(weight.args, "group")
        tensors = made.encode(one)
        require_same(made.decode(tensors), one)
        index = next(end for end in tensors if end.endswith("g_idx"))
        with pytest.raises(WorkbenchError, match=f"layer lacks {index}"):
            made.decode({end: t for end, t in tensors.items() if end != index}, "layer")


def test_zero_points_of_a_weight_said_to_be_symmetric_are_not_lost():
    weight = random_weight(16, 128, 32, symmetric=False)
    tensors = CompressedTensors(weight.args).encode(weight)
    symmetric = CompressedTensors(replace(weight.args, symmetric=True))
    with pytest.raises(WorkbenchError, match="layer has zero points"):
        symmetric.decode(tensors, "layer")
    for nothing in (pack(torch.full((4, 16), 8), 4).T, torch.zeros(2, 4, dtype=torch.int32)):
        found = symmetric.decode({**tensors, "weight_zero_point": nothing.contiguous()}, "layer")
        assert found.params.zero is None and torch.equal(found.q, weight.q)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_scales_that_float16_does_not_hold_are_refused(method):
    weight = random_weight(16, 128, 32, symmetric=True)
    fine = replace(weight, params=QParams(weight.params.scale * (1 + 2**-14), None))
    with pytest.raises(UsageError, match="layer: its scales need more than float16's digits"):
        CODECS[method](weight.args).encode(fine, "layer")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "fp8"}, "'fp8' is not supported"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": "no"}, "desc_act='no' is not supported"),
        ({}, "quant_method=None"),
        ({**CT, "format": "int-quantized", "config_groups": {"a": {"weights": {}}}}, "int-quantized"),
        ({**CT, "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        ({**CT, "config_groups": {}}, "config_groups"),
        ({**CT, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24"),
        ({**CT, "config_groups": {"a": {**CT["config_groups"]["group_0"], "input_activations": {}}}}, "activations"),
        ({**CT, "config_groups": {**CT["config_groups"], **{"b": ct_with(group_size=64)["config_groups"]["group_0"]}}},
         "several kinds"),
        (ct_with(num_bits=3), "num_bits=3"),
        (ct_with(strategy="tensor"), "'tensor'"),
        (ct_with(actorder="yes"), "'yes'"),
        (ct_with(dynamic=True), "dynamic=True"),
        ({**GPTQ, "bits": 3}, "bits=3"),
        ({**GPTQ, "group_size": 0}, "group_size=0"),
        ({**GPTQ, "group_size": True}, "group_size=True"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "marlin"),
        ({**GPTQ, "dynamic": {"-:.*down.*": {}}}, "settings of their own"),
        ({**AWQ, "version": "gemv"}, "gemv"),
        ({**AWQ, "bits": 8}, "bits=8"),
        ({**AWQ, "zero_point": 1}, "zero_point=1"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_by_name(config, named):
    with pytest.raises(UsageError, match=named):
        codec_of(config)


def test_leftovers_and_other_spellings_are_read():
    assert (
        codec_of({**CT, "sparsity_config": {"format": "dense", "targets": []}, "version": "0.9"}).args.group_size == 32
    )
    old = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}
    assert codec_of(old).args.group_size == 64
    per_row = {"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": False, "format": "gptq_v2"}
    assert codec_of(per_row).args == QuantArgs(8, strategy="channel", symmetric=False, scale="fp16")


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_public_package_writes_and_reads_the_same(symmetric):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.pack_quantized import base
    from compressed_tensors.quantization import QuantizationScheme

    weight = random_weight(24, 192, 64, symmetric=symmetric)
    ours = CompressedTensors(weight.args).encode(weight)
    scheme = QuantizationScheme(**CompressedTensors(weight.args).config()["config_groups"]["group_0"])
    theirs = {"weight": weight.dequantize(), "weight_scale": weight.params.scale}
    if weight.params.zero is not None:
        theirs["weight_zero_point"] = weight.params.zero
    made = base.PackedQuantizationCompressor.compress(theirs, scheme)
    for end in ("weight_packed", *(() if symmetric else ("weight_zero_point",))):
        assert torch.equal(made[end], ours[end]), end
    back = base.PackedQuantizationCompressor.decompress({**ours, "weight_scale": weight.params.scale}, scheme)
    assert torch.equal(back["weight"], weight.dequantize())
