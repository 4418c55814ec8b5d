"""Options of `quantize_model` that change nothing are refused, and what goes with a model goes into its folder."""

from __future__ import annotations

import json

import pytest
from transformers import PreTrainedTokenizerFast

from tests.model.tiny import make_tiny
from tests.text.tokenizers_made import llama_like
from workbench.cli import main
from workbench.compress.checkpoint import PARTS, CheckpointFolder
from workbench.compress.quantize import quantize_model
from workbench.errors import UsageError
from workbench.text.tokenizer import Tokenizer

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 2, "vocab_size": 600}  # fmt: skip


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    """With a context shorter than a calibration text is otherwise, and ends of answers of its own."""
    path = tmp_path_factory.mktemp("talking")
    make_tiny("smollm2", path, seed=3, **SIZES, max_position_embeddings=128)
    words = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=llama_like(), **words).save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    return path


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"order": "group"}, "act-order 'group' is of algorithm 'gptq', not of 'rtn'"),
        ({"order": "static", "algorithm": "awq"}, "not of 'awq'"),
        ({"calibration": "no such file"}, "calibration 'no such file': algorithm 'rtn' looks at no text"),
        ({"num_tokens": -5}, "calibration tokens -5: algorithm 'rtn'"),
        ({"num_tokens": 0, "algorithm": "gptq"}, "0 calibration tokens"),
    ],
)
def test_an_option_without_effect_is_refused(talking, tmp_path, options, named):
    with pytest.raises(UsageError, match=named):
        quantize_model(str(talking), tmp_path / "out", group_size=32, **options)
    assert not (tmp_path / "out").exists()


def test_the_commands_defaults_go_with_every_algorithm(talking, tmp_path, capsys):
    for algorithm, more in (("rtn", []), ("awq", ["--calibration-tokens", "200"])):
        command = ["quantize", str(talking), "--algorithm", algorithm, "--out", str(tmp_path / algorithm)]
        assert main([*command, "--group-size", "-1", *more]) == 0
        assert "w4a16, one scale a row: " in capsys.readouterr().out


def test_a_short_context_is_calibrated_with_short_texts(talking, tmp_path):
    told = quantize_model(str(talking), tmp_path / "out", group_size=32, algorithm="gptq", num_tokens=300)
    assert told["fallbacks"] == [] and all(one["output_error"] > 0 for one in told["layers"])


def test_ends_of_answers_and_the_tokenizer_are_there_before_layers_are_forgotten(talking, tmp_path, monkeypatch):
    close, out = CheckpointFolder.close, tmp_path / "out"

    def stopped(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(CheckpointFolder, "close", stopped)
    with pytest.raises(KeyboardInterrupt):
        quantize_model(str(talking), out, group_size=32)
    assert Tokenizer.from_source(out).eos_token_ids == Tokenizer.from_source(talking).eos_token_ids == (2, 7)
    monkeypatch.setattr(CheckpointFolder, "close", close)
    quantize_model(str(talking), out, group_size=32)
    assert not (out / PARTS).exists()
