"""Quantized checkpoints: written by `quantize_model`, read as floats and as they are, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.model.tiny import make_tiny
from tests.quant.written_words import awq_weight, gptq_weight, packed_weight
from tests.tiny_llm import open_llm, tokens
from workbench.cli import main
from workbench.compress.calibrate import READERS
from workbench.compress.checkpoint import PARTS, SCRATCH
from workbench.compress.quantize import quantize_model
from workbench.errors import UsageError, WorkbenchError
from workbench.model.divergence import kl_divergence
from workbench.model.weights import load_weights, read_model_config
from workbench.quant.codecs import CODECS
from workbench.quant.result import snr_db

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 2}  # fmt: skip
IDS = [5, 6, 7, 90, 12, 3, 44, 100]
STEMS = [f"model.layers.{i}.{name}" for i in range(2) for names in READERS.values() for name in names]


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    path = tmp_path_factory.mktemp("floats")
    make_tiny("smollm2", path, seed=3, **SIZES)
    return path


@pytest.fixture(scope="module")
def folders(floats, tmp_path_factory):
    """A folder for each format, and options."""
    made: dict[tuple, Path] = {}

    def folder(method="compressed-tensors", **options):
        key = (method, *options.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp("quantized") / "out"
            quantize_model(str(floats), made[key], format=method, **{"group_size": 32, **options})
        return made[key]

    return folder


def logits(llm) -> torch.Tensor:
    return llm.runner.logits(IDS)


def by_hand(floats: Path, folder: Path, group: int) -> torch.Tensor:
    """Logits of transformers with the folder's numbers, unpacked in plain Python."""
    model = AutoModelForCausalLM.from_pretrained(floats, dtype=torch.float32)
    held = load_file(folder / "model.safetensors")
    method = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]
    unpacked = {
        "gptq": lambda parts: gptq_weight(parts, 4, plus_one=False),
        "awq": lambda parts: awq_weight(parts, group),
        "compressed-tensors": lambda parts: packed_weight(parts, 4),
    }[method]
    state = {name: t for name, t in held.items() if name.rpartition(".")[2] == "weight"}
    for stem in STEMS:
        parts = {name.removeprefix(f"{stem}."): t for name, t in held.items() if name.startswith(f"{stem}.")}
        state[f"{stem}.weight"] = unpacked(parts)
    model.load_state_dict(state, strict=False)
    assert len(state) == len(list(model.named_parameters()))
    with torch.inference_mode():
        return model(torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize("method", CODECS)
def test_every_format_is_read_as_floats_and_computed_with_as_it_is(floats, folders, method):
    folder = folders(method)
    exact = open_llm(folder, quantization="none")
    torch.testing.assert_close(logits(exact), by_hand(floats, folder, 32), rtol=1e-4, atol=1e-4)
    own = open_llm(folder)
    assert own.quantization.name == method and own.quantization.why == "the checkpoint is"
    assert {own.quantization.formats[f"{stem}.weight"] for stem in STEMS} == {"uint4"}
    assert 0 <= kl_divergence(logits(exact), logits(own)) < 1e-6
    assert tokens(open_llm(folder, quantization=method)) == tokens(own) == tokens(exact)
    assert kl_divergence(logits(open_llm(floats)), logits(own)) > 1e-4


@pytest.mark.parametrize("options", [{"scheme": "w8a16", "group_size": -1}, {"symmetric": True}, {"group_size": -1}])
def test_other_schemes(folders, options):
    folder = folders(**options)
    exact, own = open_llm(folder, quantization="none"), open_llm(folder)
    kinds = {own.quantization.formats[f"{stem}.weight"] for stem in STEMS}
    assert kinds == {"int8" if options.get("scheme") == "w8a16" else "uint4"}
    assert 0 <= kl_divergence(logits(exact), logits(own)) < 1e-6


def test_transformers_reads_what_is_written(folders):
    pytest.importorskip("compressed_tensors")
    folder = folders(symmetric=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        wanted = model(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(logits(open_llm(folder, quantization="none")), wanted, rtol=1e-4, atol=1e-4)


def test_transformers_reads_zero_points_when_it_dequantizes(folders):
    """What it lays out for them is not packed (llm-compressor#1618). It may multiply in float16, as scales are."""
    pytest.importorskip("compressed_tensors")
    from transformers.utils.quantization_config import CompressedTensorsConfig

    how = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folders(), dtype=torch.float32, quantization_config=how)
    ours = load_weights(read_model_config(folders()), folders(), "auto", torch.float32)
    for stem in STEMS:
        theirs = model.get_parameter(f"{stem}.weight")
        torch.testing.assert_close(theirs, ours[f"{stem}.weight"], rtol=2**-11, atol=2**-25, msg=stem)


def rewritten(folder: Path, to: Path, change, config=None) -> Path:
    to.mkdir()
    told = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(told if config is None else config(told)))
    save_file(change(load_file(folder / "model.safetensors")), to / "model.safetensors")
    return to


def test_groups_that_kernels_do_not_know_are_floats(folders, tmp_path):
    def shuffled(tensors):
        name = f"{STEMS[0]}.g_idx"
        return {**tensors, name: tensors[name].flip(0).contiguous()}

    folder = rewritten(folders("gptq"), tmp_path / "act-order", shuffled)
    own, exact = open_llm(folder), open_llm(folder, quantization="none")
    assert own.quantization.formats[f"{STEMS[0]}.weight"] == "float32"
    assert own.quantization.formats[f"{STEMS[1]}.weight"] == "uint4"
    assert f"; 1 of {len(STEMS)} matrices are computed with as floats, {STEMS[0]}.weight" in own.quantization.why
    assert 0 <= kl_divergence(logits(exact), logits(own)) < 1e-6
    assert not torch.allclose(logits(exact), logits(open_llm(folders("gptq"), quantization="none")))


def test_eight_bits_with_zero_points_are_floats_and_that_is_said(folders):
    folder = folders(scheme="w8a16", symmetric=False)
    own, exact = open_llm(folder), open_llm(folder, quantization="none")
    assert {own.quantization.formats[f"{stem}.weight"] for stem in STEMS} == {"float32"}
    assert f"{len(STEMS)} of {len(STEMS)} matrices" in own.quantization.why
    assert "8 bits without zero points" in own.quantization.why and "matrices" not in exact.quantization.why
    assert 0 <= kl_divergence(logits(exact), logits(own)) < 1e-6


def test_a_fused_layer_may_be_quantized_in_part(floats, folders, tmp_path):
    stem = "model.layers.0.self_attn.v_proj"
    float_v = load_file(floats / "model.safetensors")[f"{stem}.weight"]

    def without_v(tensors):
        return {n: t for n, t in tensors.items() if not n.startswith(stem)} | {f"{stem}.weight": float_v}

    folder = rewritten(folders(), tmp_path / "part", without_v)
    own, exact = open_llm(folder), open_llm(folder, quantization="none")
    assert own.quantization.formats[f"{stem}.weight"] == "float32"
    assert 0 <= kl_divergence(logits(exact), logits(own)) < 1e-6


def test_a_weights_tensors_may_lie_in_several_files(folders, tmp_path):
    whole = folders()
    tensors = load_file(whole / "model.safetensors")
    places = {name: f"model-{1 + name.endswith('scale')}.safetensors" for name in tensors}
    (tmp_path / "config.json").write_text((whole / "config.json").read_text())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, tmp_path / file)
    assert torch.equal(logits(open_llm(tmp_path)), logits(open_llm(whole)))


def test_what_a_checkpoint_lacks_is_named(folders, tmp_path):
    folder = rewritten(
        folders(), tmp_path / "lost", lambda held: {n: t for n, t in held.items() if n != f"{STEMS[0]}.weight_scale"}
    )
    with pytest.raises(WorkbenchError, match=rf"{STEMS[0]} lacks weight_scale"):
        open_llm(folder)
    told = rewritten(
        folders(), tmp_path / "kv", dict, lambda told: {
            **told, "quantization_config": {**told["quantization_config"], "kv_cache_scheme": {"num_bits": 8}}
        },
    )  # fmt: skip
    with pytest.raises(UsageError, match="kv_cache_scheme"):
        open_llm(told)


def test_a_scheme_that_the_checkpoint_is_not_is_refused(floats, folders):
    with pytest.raises(UsageError, match=r"quantization='gptq'.* weights are compressed-tensors"):
        open_llm(folders(), quantization="gptq")
    with pytest.raises(UsageError, match=r"quantization='awq'.* weights are floats"):
        open_llm(floats, quantization="awq")
    assert open_llm(folders(), quantization="w8a16").quantization.name == "w8a16"
    told = open_llm(folders(), dtype="bfloat16").quantization
    assert told.name == "none" and "the checkpoint is compressed-tensors" in told.why


def test_the_command_says_what_it_did_and_goes_on_where_it_was_stopped(floats, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    command = ["quantize", str(floats), "--group-size", "32", "--out", str(out)]
    from workbench.compress.checkpoint import CheckpointFolder

    write = CheckpointFolder.write
    done: list[int] = []

    def stopping(self, result):
        if done:
            raise KeyboardInterrupt
        done.append(result.index)
        write(self, result)

    monkeypatch.setattr(CheckpointFolder, "write", stopping)
    with pytest.raises(KeyboardInterrupt):
        quantize_model(str(floats), out, group_size=32)
    monkeypatch.setattr(CheckpointFolder, "write", write)
    assert [file.name for file in (out / PARTS).glob("*.safetensors")] == ["0000.safetensors"]
    kept = (out / PARTS / "0000.safetensors").stat().st_mtime_ns
    with pytest.raises(UsageError, match="layers of another run"):
        quantize_model(str(floats), out, group_size=32, symmetric=True)
    assert (out / PARTS / "0000.safetensors").stat().st_mtime_ns == kept
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert printed.err.splitlines() == ["layer 1 of 2", "layer 2 of 2"]
    assert (told["scheme"], told["algorithm"], told["group_size"], told["fallbacks"]) == ("w4a16", "rtn", 32, [])
    assert told["bytes_after"] == (out / "model.safetensors").stat().st_size < told["bytes_before"]
    assert [one["name"] for one in told["layers"]] == STEMS and all(15 < one["snr_db"] < 30 for one in told["layers"])
    assert not (out / PARTS).exists()
    made = (out / "model.safetensors").stat().st_mtime_ns
    assert main(command) == 2 and "is complete: a run with the same options" in capsys.readouterr().err
    assert main([*command, "--symmetric"]) == 2 and "is not empty" in capsys.readouterr().err
    assert (out / "model.safetensors").stat().st_mtime_ns == made and not (out / PARTS).exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scheme": "fp8"}, "'fp8' cannot be written"),
        ({"format": "gguf-v9"}, "choose from compressed-tensors, gptq, awq, gguf"),
        ({"group_size": 24}, r"groups of 24 do not divide its 64 inputs"),
        ({"algorithm": "gptq"}, "has no tokenizer"),
        ({"format": "awq", "scheme": "w8a16"}, "of 4 bits, not int of 8"),
        ({"format": "awq", "algorithm": "gptq", "order": "group"}, "no g_idx"),
    ],
)
def test_refused_before_any_work(floats, tmp_path, options, named):
    with pytest.raises(UsageError, match=named):
        quantize_model(str(floats), tmp_path / "out", **{"group_size": 32, **options})
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir()), "free for another try"


def test_a_folder_that_is_a_file_or_another_groups_are_told_and_leave_it_free(floats, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file: give a folder"):
        quantize_model(str(floats), tmp_path / "file", group_size=32)
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="groups of 48"):
        quantize_model(str(floats), out, format="gptq", group_size=48)
    out.mkdir(exist_ok=True)
    (out / f"model.safetensors{SCRATCH}").write_bytes(b"of a run that was killed")
    quantize_model(str(floats), out, format="gptq", group_size=32)
    assert not list(out.glob(f"*{SCRATCH}"))


@pytest.mark.parametrize("method", ["compressed-tensors", "gptq"])
@pytest.mark.parametrize("group", [-1, 32])
def test_eight_bits_are_rounded_under_the_scale_that_is_stored(floats, tmp_path, method, group):
    """What the report says is what the file holds."""
    out = tmp_path / "out"
    told = quantize_model(str(floats), out, scheme="w8a16", format=method, group_size=group)
    exact, kept = (load_weights(read_model_config(at), at, "auto", torch.float32) for at in (floats, out))
    for one in told["layers"]:
        before, after = exact[f"{one['name']}.weight"], kept[f"{one['name']}.weight"]
        assert one["snr_db"] == pytest.approx(snr_db(before, after), abs=1e-6), one["name"]


def test_a_quantized_model_is_not_quantized_again(folders, tmp_path):
    with pytest.raises(UsageError, match="quantized already"):
        quantize_model(str(folders()), tmp_path / "out", group_size=32)


def test_a_tied_head_stays_tied_and_the_embedding_as_it_was(floats, folders, tmp_path):
    made, before = load_file(folders() / "model.safetensors"), load_file(floats / "model.safetensors")
    told = json.loads((folders() / "config.json").read_text())
    assert told["tie_word_embeddings"] and told["quantization_config"]["ignore"] == ["lm_head"]
    assert not any(name.startswith("lm_head") for name in made)
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        assert torch.equal(made[name], before[name].half())
    copied = rewritten(
        folders(),
        tmp_path / "copied",
        lambda held: {**held, "lm_head.weight": held["model.embed_tokens.weight"].clone()},
    )
    assert torch.equal(logits(open_llm(copied)), logits(open_llm(folders())))
