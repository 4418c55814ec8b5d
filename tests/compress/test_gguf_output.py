"""Models written as GGUF: what the public package, transformers and our own reader find in the file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.model.gguf_files import write_gguf
from tests.model.tiny import make_tiny
from tests.text.tokenizers_made import of_bytes, unnamed_cuts
from tests.tiny_llm import open_llm
from workbench.cli import main
from workbench.compress import gguf as output
from workbench.compress.calibrate import is_matrix
from workbench.compress.checkpoint import PARTS, LayersFolder
from workbench.compress.quantize import quantize_model
from workbench.errors import UsageError
from workbench.gguf_file import GGUFFile
from workbench.model import store
from workbench.model.gguf.metadata import require_said
from workbench.model.gguf.writer import GGUFWriter, Planned
from workbench.model.weights import load_weights, read_model_config
from workbench.text.gguf_metadata import tokenizer_metadata
from workbench.text.tokenizer import Tokenizer

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 2}  # fmt: skip
MORE = {
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        }
    }
}  # fmt: skip
IDS = [5, 6, 7, 90, 12, 3, 44, 100]
TEXTS = ["It's 12345 o'clock!\n\n  x = f(a, b)\t# ok", "한국어 文字 e\u0301 😀", "<|im_start|>user\nhi<|im_end|>\n", ""]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Of a family: the folder of floats and the file."""
    made: dict[tuple, tuple[Path, Path]] = {}

    def write(family="smollm2", **options):
        key = (family, *options.items())
        if key not in made:
            folder, out = tmp_path_factory.mktemp(family), tmp_path_factory.mktemp("gguf") / "out"
            make_tiny(family, folder, seed=3, **SIZES, **MORE.get(family, {}))
            quantize_model(str(folder), out, format="gguf", **{"scheme": "w8a16", **options})
            made[key] = folder, store.locate(out)
        return made[key]

    return write


def logits(path: Path) -> torch.Tensor:
    return open_llm(path).runner.logits(IDS)


@pytest.mark.parametrize("family", ["smollm2", "llama2", "llama3", "llama-linear", "qwen2", "qwen3", "mistral"])
def test_every_family_comes_back_with_its_configuration_and_weights(written, family):
    folder, file = written(family)
    config = read_model_config(folder)
    require_said(GGUFFile(file), config)
    exact, found = (load_weights(read_model_config(p), p, "auto", torch.float32) for p in (folder, file))
    assert exact.keys() == found.keys()
    for name, tensor in exact.items():
        if not is_matrix(name) and "embed" not in name and "head" not in name:
            assert torch.equal(found[name], tensor), name
        else:  # half a step of Q8_0, and of its scale's last digit
            step = tensor.reshape(-1, 32).abs().amax(-1, keepdim=True) / 127
            assert ((found[name] - tensor).reshape(-1, 32).abs() <= 0.57 * step).all(), name


@pytest.mark.parametrize("options", [{"scheme": "w4a16"}, {"scheme": "w4a16", "symmetric": True}, {}])
def test_transformers_and_the_public_package_read_it(written, options):
    folder, file = written(**options)
    kind = {2: "Q4_1", 4: "Q4_0"}.get(2 * len(options), "Q8_0")
    reader = gguf.GGUFReader(file)
    kinds = {t.name: t.tensor_type.name for t in reader.tensors}
    assert kinds.pop("token_embd.weight") == "Q8_0" and "output.weight" not in kinds
    assert {k for n, k in kinds.items() if "norm" not in n} == {kind}
    assert {k for n, k in kinds.items() if "norm" in n} == {"F32"}
    assert reader.get_field("general.file_type").contents() == gguf.LlamaFileType[f"MOSTLY_{kind}"]
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    with torch.inference_mode():
        wanted = model(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(logits(file), wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(folder), wanted, rtol=1e-4, atol=1e-4)
    assert json.loads(json.dumps(open_llm(file.parent).model_config.num_layers)) == 2


def test_a_file_gives_its_own_bytes_again(tmp_path):
    """Metadata of any kind, the order of tensors and the rest are the source's; so is the whole file."""
    model = make_tiny("smollm2", tmp_path / "floats", seed=3, **SIZES)
    source = write_gguf(tmp_path / "m.gguf", model, "llama", lambda name: "Q8_0" if "token" in name else "Q4_0")
    quantize_model(str(source), tmp_path / "first", format="gguf", symmetric=True)
    first = store.locate(tmp_path / "first")
    given, found = GGUFFile(source), GGUFFile(first)
    assert list(found.tensors) == list(given.tensors)
    assert found.metadata == {**given.metadata, "general.file_type": 2, "general.quantization_version": 2}
    for name, info in given.tensors.items():
        assert bytes(found.bytes_of(found.tensors[name])) == bytes(given.bytes_of(info)), name
    quantize_model(str(first), tmp_path / "again", format="gguf", symmetric=True)
    assert store.locate(tmp_path / "again").read_bytes() == first.read_bytes()


@pytest.mark.slow
def test_the_default_model_gives_its_own_file_again(tmp_path, capsys):
    assert main(["quantize", "smollm2-135m", "--format", "gguf", "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["snr_db"] for one in told["layers"]} == {None} and told["bits_per_weight"] == 5
    assert store.locate(tmp_path / "out").read_bytes() == store.locate("smollm2-135m").read_bytes()


def test_query_and_key_rows_left_as_they_lie_would_show(written, tmp_path, monkeypatch):
    folder, _ = written()
    monkeypatch.setattr(output, "permute", lambda rows, heads: rows)
    quantize_model(str(folder), tmp_path / "out", format="gguf", scheme="w8a16")
    off = logits(store.locate(tmp_path / "out")) - logits(folder)
    assert off.norm() > 20 * (logits(written()[1]) - logits(folder)).norm()


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    """A tiny model with the default model's tokenizer."""
    path = tmp_path_factory.mktemp("talking")
    make_tiny("smollm2", path, vocab_size=49200, **SIZES)
    Tokenizer.from_source(store.locate("smollm2-135m")).transformers.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("gptq", {}), ("gptq", {"symmetric": True}), ("gptq", {"scheme": "w8a16"}), ("awq", {})],
)
def test_calibrated_algorithms_write_what_they_chose(talking, tmp_path, algorithm, options, monkeypatch):
    """The codes that an algorithm chose are in the file, and a stopped run goes on."""
    kept, write = [], LayersFolder.write

    def stopping(self, result):
        if len(kept) == 1:
            kept.append(None)
            raise KeyboardInterrupt
        kept.append(result)
        write(self, result)

    monkeypatch.setattr(LayersFolder, "write", stopping)
    run = {"format": "gguf", "algorithm": algorithm, "num_tokens": 256, **options}
    with pytest.raises(KeyboardInterrupt):
        quantize_model(str(talking), tmp_path / "out", **run)
    assert [p.name for p in (tmp_path / "out").iterdir()] == [PARTS]
    told = quantize_model(str(talking), tmp_path / "out", **run)
    assert len(kept) == 4 and told["fallbacks"] == [] and len(told["layers"]) == 14
    file = store.locate(tmp_path / "out")
    found = load_weights(read_model_config(file), file, "auto", torch.float32)
    for result in (kept[0], kept[3]):
        for name, tensor in result.tensors().items():
            assert torch.equal(found[name], tensor), name


def test_a_tokenizer_comes_back(talking, tmp_path):
    quantize_model(str(talking), tmp_path / "out", format="gguf", scheme="w8a16")
    file = store.locate(tmp_path / "out")
    ours, found = Tokenizer.from_source(talking), Tokenizer.from_source(file)
    metadata = GGUFFile(file).metadata
    assert metadata["tokenizer.ggml.pre"] == "smollm" and metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["tokenizer.ggml.tokens"][-1] == "[PAD49199]", "the table is taller than the vocabulary"
    assert found.chat_template == ours.chat_template and found.bos_token_id == ours.bos_token_id
    assert set(found.eos_token_ids) == set(ours.eos_token_ids)
    for text in TEXTS:
        assert found.encode(text) == ours.encode(text) and found.decode(ours.encode(text)) == ours.decode(
            ours.encode(text)
        )
    original = GGUFFile(store.locate("smollm2-135m")).metadata
    for key in ("tokens", "token_type"):
        assert metadata[f"tokenizer.ggml.{key}"][:49152] == original[f"tokenizer.ggml.{key}"], key
    assert metadata["tokenizer.ggml.merges"] == original["tokenizer.ggml.merges"]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2", "default"])
def test_rules_for_cutting_text_are_told_apart(pre):
    made = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=of_bytes(pre)), ())
    assert tokenizer_metadata(made, 300)["tokenizer.ggml.pre"] == pre


def test_a_tokenizer_that_gguf_has_no_name_for_is_refused():
    with pytest.raises(UsageError, match="no name for here"):
        tokenizer_metadata(Tokenizer(PreTrainedTokenizerFast(tokenizer_object=unnamed_cuts()), ()), 300)


@pytest.mark.parametrize(
    ("family", "options", "named"),
    [
        ("smollm2", {"group_size": 64}, "group size 64: GGUF's blocks are of 32"),
        ("smollm2", {"algorithm": "gptq", "order": "group"}, "needs a g_idx"),
        ("llama3", {}, "llama3 rule"),
        ("qwen2-window", {}, "sliding"),
    ],
)
def test_what_a_file_cannot_say_is_refused_before_any_work(tmp_path, family, options, named):
    make_tiny(family, tmp_path / "floats", **SIZES)
    with pytest.raises(UsageError, match=named):
        quantize_model(str(tmp_path / "floats"), tmp_path / "out", format="gguf", **options)
    assert not (tmp_path / "out").exists(), "free for another try"


def test_rows_that_are_no_whole_blocks_are_named(tmp_path):
    make_tiny("smollm2", tmp_path / "floats", **{**SIZES, "intermediate_size": 112})
    with pytest.raises(UsageError, match=r"layers\.0\.mlp\.down_proj: rows of 112 are no whole Q4_1 blocks of 32"):
        quantize_model(str(tmp_path / "floats"), tmp_path / "out", format="gguf")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_several_files_is_asked_about(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"2 \.gguf files: name one"):
        store.locate(tmp_path)


def test_a_writer_takes_what_was_planned_and_nothing_else(tmp_path):
    writer = GGUFWriter(tmp_path / "f.gguf", {"general.alignment": 64}, [
        Planned("w", "F32", (2, 3)), Planned("v", "F32", (1,)),
    ], alignment=64)  # fmt: skip
    with pytest.raises(ValueError, match="not planned"):
        writer.put("other", b"")
    with pytest.raises(ValueError, match="4 bytes where 24"):
        writer.put("w", bytes(4))
    with pytest.raises(ValueError, match="1 tensors were not written, the first of them v"):
        writer.close()
    with pytest.raises(ValueError, match="dict is not written"):
        GGUFWriter(tmp_path / "g.gguf", {"a": {}}, [])
