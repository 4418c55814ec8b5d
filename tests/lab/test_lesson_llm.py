"""The lesson's engine: weights are loaded once, and what a test turns off is off."""

from __future__ import annotations

from pathlib import Path

from tests.lab.lessons import begin
from tests.tiny_llm import tokens
from workbench.config import EngineConfig


def test_weights_are_loaded_once(folder: Path, tmp_path: Path, monkeypatch) -> None:
    lesson = begin(monkeypatch, tmp_path, WORKBENCH_MODEL=str(folder))
    first = lesson.llm(num_kv_blocks=32)
    second = lesson.llm(num_kv_blocks=16, max_num_seqs=1)
    assert second.runner.decoder.embedding is first.runner.decoder.embedding
    assert (first.config.max_num_seqs, second.config.max_num_seqs) == (EngineConfig().max_num_seqs, 1)
    assert first.config.model == str(folder) and first.config.device == "cpu"
    assert tokens(first) == tokens(second)
    assert lesson.llm(dtype="bfloat16", num_kv_blocks=8).runner.decoder.embedding is not first.runner.decoder.embedding


def test_what_is_turned_off_is_laid_over_every_engine(folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    off = {"WORKBENCH_TURN_OFF": '{"max_num_seqs": 1, "attention_backend": "torch_native"}'}
    lesson = begin(monkeypatch, tmp_path, WORKBENCH_MODEL=str(folder), **off)
    assert 'turned off for a test: {"max_num_seqs": 1' in capsys.readouterr().out
    llm = lesson.llm(num_kv_blocks=32, max_num_seqs=8, attention_backend="sdpa")
    assert llm.config.max_num_seqs == 1 and llm.runner.decoder.attention.name == "torch_native"
    engine = lesson.engine(llm, max_num_seqs=4, max_num_batched_tokens=16)
    assert (engine.config.max_num_seqs, engine.config.max_num_batched_tokens) == (1, 16)
    assert begin(monkeypatch, tmp_path, WORKBENCH_MODEL=str(folder)).llm(num_kv_blocks=8).config.max_num_seqs > 1
