"""``workbench eval`` from the command line."""

from __future__ import annotations

import hashlib
import json

from workbench.cli import main
from workbench.text.sample_texts import calibration_text, evaluation_text

ENGINE = ["--device", "cpu", "--block-size", "4", "--num-kv-blocks", "64"]


def told(capsys, *args):
    assert main(["eval", *map(str, args), *ENGINE, "--json"]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err.splitlines()


def test_a_row_says_all_that_it_depends_on(tiny_chat, tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text(evaluation_text()[:1500])
    scored = ("--text", text, "--tokens", 60, "--window", 24, "--stride", 12)
    row, progress = told(capsys, tiny_chat, *scored, "--reference", tiny_chat)
    assert (row["window"], row["stride"], row["bos"], row["unit"], row["tokens"]) == (24, 12, False, "token", 59)
    assert row["text_sha256"] == hashlib.sha256(text.read_bytes()).hexdigest()
    assert row["reference_perplexity"] == row["perplexity"] > 1
    assert row["kl"] == 0 and row["top1_agreement"] == 1 and row["quantization"] == "none"
    assert progress == [f"window {i} of 4" for i in range(1, 5)]
    alone, _ = told(capsys, tiny_chat, *scored, "--record", tmp_path / "kept")
    assert alone["kl"] is alone["reference_perplexity"] is None and alone["perplexity"] == row["perplexity"]
    assert told(capsys, tiny_chat, *scored, "--record", tmp_path / "kept")[0] == alone
    assert main(["eval", str(tiny_chat), *map(str, scored), *ENGINE]) == 0
    assert (
        f"59 tokens, window 24, stride 12, no BOS, the text's SHA-256 {row['text_sha256'][:12]}…"
        in capsys.readouterr().out
    )
    assert main(["eval", str(tiny_chat), *map(str, scored), "--reference", str(tiny_chat), *ENGINE]) == 0
    assert f"a token ({tiny_chat}: {row['perplexity']:.3f}), KL 0" in capsys.readouterr().out


def test_wrong_values_are_named(tiny_chat, tiny_without_text, tmp_path, capsys):
    for args, named in (
        ((tiny_chat, "--window", 100000, "--stride", 5), "beyond max_model_len"),
        ((tiny_chat, "--stride", 600), "1 to 512"),
        ((tiny_chat, "--tokens", -1), "at least 1"),
        ((tiny_without_text,), "has no tokenizer"),
        ((tiny_chat, "--text", tmp_path / "none"), "cannot be read"),
        ((tiny_chat, "--limit", 3), "--limit is for --tasks"),
        ((tiny_chat, "--include-path", tmp_path), "--include-path is for --tasks"),
        ((tiny_chat, "--tasks", "a", "--reference", tiny_chat), "--reference is for a text"),
        ((tiny_chat, "--tasks", "a", "--record", tmp_path / "kept"), "--record is for a text"),
    ):
        assert main(["eval", *map(str, args), *ENGINE]) in (1, 2)
        assert named in capsys.readouterr().err


def test_nothing_is_scored_that_is_calibrated_with():
    calibrated = set(calibration_text().split("\n\n"))
    scored = evaluation_text().split("\n\n")
    assert len(scored) > 300 and calibrated.isdisjoint(scored)
