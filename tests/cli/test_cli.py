"""The command line: what it prints, what it returns, and that every error is one line with a remedy."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench import LLM, SamplingParams
from workbench.cli import main
from workbench.engine.replay import replay

SMALL = ("--num-kv-blocks", "64", "--num-threads", "1", "--max-tokens", "6")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_generate_json_is_one_object_a_request_and_agrees_with_the_library(tiny_chat, capsys):
    prompts = ["Once upon a time", "안녕하세요 🙂"]
    assert main(["generate", *prompts, "--json", "--model", str(tiny_chat), *SMALL]) == 0
    printed = lines(capsys)
    llm = LLM(model=str(tiny_chat), num_kv_blocks=64)
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    for one, output in zip(printed, outputs, strict=True):
        assert one["token_ids"] == output.token_ids and one["text"] == output.text
        assert one["prompt_token_ids"] == output.prompt_token_ids
        assert one["finish_reason"] == output.finish_reason and one["num_cached_tokens"] == 0
        assert one["metrics"]["e2e"] >= one["metrics"]["ttft"] > 0


def test_generate_reads_prompts_from_standard_input(tiny_chat, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("first\n\nsecond\n"))
    assert main(["generate", "--json", "--model", str(tiny_chat), *SMALL]) == 0
    assert len(lines(capsys)) == 2


def test_seed_and_temperature_take_effect(tiny_chat, capsys):
    def run(*flags: str) -> list[int]:
        assert main(["generate", "one two", "--json", "--model", str(tiny_chat), *SMALL, *flags]) == 0
        return lines(capsys)[0]["token_ids"]

    hot = ("--temperature", "1.5")
    assert run(*hot, "--seed", "1") == run(*hot, "--seed", "1") != run(*hot, "--seed", "2")
    assert run("--seed", "1") == run("--seed", "2"), "greedy needs no seed"
    assert run(*hot, "--top-k", "1") == run()
    assert len(run("--ignore-eos", "--max-tokens", "3")) == 3


def test_engine_flags_take_effect_and_a_recorded_run_replays(tiny_chat, tmp_path, capsys):
    record = tmp_path / "run.jsonl"
    flags = ("--max-num-batched-tokens", "4", "--block-size", "3", "--record", str(record))
    assert main(["generate", "a b c d e f g", "h i", "--json", "--model", str(tiny_chat), *SMALL, *flags]) == 0
    header = json.loads(record.read_text().splitlines()[0])
    assert header["config"]["block_size"] == 3 and header["config"]["max_num_batched_tokens"] == 4
    steps = list(replay(record))
    assert max(sum(s["num_tokens"] for s in step.recorded.scheduled) for step in steps) <= 4
    assert not any(step.differences() for step in steps)


def test_chat_keeps_the_conversation(tiny_chat, capsys):
    flags = ("--json", "--model", str(tiny_chat), *SMALL)
    assert main(["chat", "Hello", "And then?", "--system", "Be brief.", *flags]) == 0
    first, second = lines(capsys)
    prompt = LLM(model=str(tiny_chat), num_kv_blocks=64).tokenizer.decode(second["prompt_token_ids"], False)
    assert "Be brief." in prompt and "Hello" in prompt and first["text"] in prompt and "And then?" in prompt


def test_chat_prints_as_it_comes(tiny_chat, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    assert main(["chat", "--model", str(tiny_chat), *SMALL]) == 0
    typed = capsys.readouterr().out
    assert main(["chat", "Hello", "--model", str(tiny_chat), *SMALL]) == 0
    assert typed == capsys.readouterr().out != "\n"


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["generate", "x", "--max-num-seqs", "0"], 2, ["max_num_seqs=0", "least is 1"]),
        (
            ["generate", "x", "--no-enable-prefix-caching", "--prefix-index", "radix"],
            2,
            ["prefix_index='radix'", "enable_prefix_caching"],
        ),
        (["generate", "x", "--kv-cache-dtype", "int8"], 2, ["kv_cache_dtype='int8'", "not supported yet", "auto"]),
        (["generate", "x", "--attention-backend", "nonsense"], 2, ["nonsense", "torch_native"]),
        (["generate", "x", "--temperature", "-1"], 2, ["temperature=-1.0", "at least 0"]),
        (["generate", "x", "--model", "smollm2-135"], 2, ["smollm2-135", "smollm2-135m"]),
        (["generate", "x", "--model", "someone/unheard-of"], 1, ["someone/unheard-of", "workbench model fetch"]),
        (["bench", "throughput", "--num-prompts", "0"], 2, ["--num-prompts 0", "at least 1"]),
        (["model", "info", "no-such-model"], 2, ["no-such-model"]),
    ],
)
def test_an_error_is_one_line_that_names_value_and_remedy(argv, status, words, capsys):
    assert main(argv) == status
    told = capsys.readouterr().err.strip()
    assert "\n" not in told and told.startswith("workbench: ")
    assert all(word in told for word in words), told


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["COMMAND"]),
        (["generat"], ["'generat'", "'generate'"]),
        (["bench"], ["COMMAND", "workbench bench --help"]),
        (["generate", "x", "--no-such-flag", "1"], ["--no-such-flag", "no such argument", "workbench generate --help"]),
        (["generate", "x", "--max-num-seq", "3"], ["--max-num-seq", "did you mean --max-num-seqs?"]),
        (["generate", "x", "--disable-cascade-attn", "False"], ["takes no value", "say --no-disable-cascade-attn;"]),
        (["simulate", "--enforce-eager=true"], ["--enforce-eager takes no value", "say --enforce-eager;"]),
        (["generate", "--no-enforce-eager", "false", "x"], ["false was given: say --enforce-eager;"]),
        (["generate", "x", "--max-num-seqs=x"], ["--max-num-seqs: 'x' is no whole number", "--help"]),
        (["generate", "x", "--max-num-seqs"], ["--max-num-seqs: expected one argument"]),
        (["generate", "x", "--temperature", "hot"], ["--temperature: 'hot' is no number"]),
        (["generate", "x", "--seed", "9" * 5000], ["--seed", "is no whole number"]),
        (["generate", "x", "--seed", "a\nb\u2028c"], ["--seed", "is no whole number"]),
        (["bench", "throughput", "--input-len", "9:3"], ["--input-len", "9:3", "16:512"]),
        (["bench", "throughput", "--vs", "x"], ["--vs", "'x'", "transformers"]),
        (["model", "dance"], ["'dance'", "'list'"]),
    ],
)
def test_wrong_words_are_one_line_that_names_flag_value_and_remedy(argv, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    told = printed.err.removesuffix("\n")
    assert printed.out == "" and len(told.splitlines()) == 1 and len(told) < 900, told
    assert told.startswith("workbench: ") and all(word in told for word in words), told


def test_every_flag_of_every_command_tells_a_wrong_value_in_one_line(capsys):
    """Whole numbers and numbers, as flags are made from the fields: none may print more than its line."""
    import dataclasses

    from workbench.cli.options import SAMPLING_FLAGS
    from workbench.config import EngineConfig

    numbers = [spec.name for spec in dataclasses.fields(EngineConfig) if str(spec.type)[:3] in ("int", "flo")]
    numbers += [name for name in SAMPLING_FLAGS if name != "ignore_eos"]
    for name in numbers:
        flag = "--" + name.replace("_", "-")
        with pytest.raises(SystemExit):
            main(["generate", "x", flag, "many"])
        assert capsys.readouterr().err.startswith(f"workbench: {flag}: 'many' is no "), flag
        for value in ("nan", "inf", "-inf", "-" + "9" * 400, "1e999"):
            try:
                status = main(["generate", "x", f"{flag}={value}", "--model", "/"])
            except SystemExit as stopped:
                status = stopped.code
            told = capsys.readouterr().err
            assert status == 2 and told.count("\n") == 1 and len(told) < 900, (flag, value, told)


def test_a_recording_that_cannot_be_written_is_told_before_the_model_is_loaded(tmp_path, capsys, monkeypatch):
    def load(config):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("workbench.cli.text._load", load)
    for path in (tmp_path / "absent" / "run.jsonl", tmp_path, "", "a\0b"):
        assert main(["generate", "x", "--record", str(path)]) == 1
        told = capsys.readouterr().err
        assert told.startswith("workbench: --record ") and "cannot be written" in told and told.count("\n") == 1
    kept = tmp_path / "kept.jsonl"
    kept.write_text("before\n")
    for path in (tmp_path / "new.jsonl", kept):
        assert main(["generate", "x", "--record", str(path)]) == 1
    assert not (tmp_path / "new.jsonl").exists() and kept.read_text() == "before\n", "looking leaves nothing behind"
    assert "was loaded" in capsys.readouterr().err


def test_a_result_that_cannot_be_written_is_told_before_the_run(tmp_path, capsys, monkeypatch):
    def run(*arguments):
        raise AssertionError("it ran")

    monkeypatch.setattr("workbench.measure.throughput.run", run)
    for path in (tmp_path / "absent" / "r.json", tmp_path, ""):
        assert main(["bench", "throughput", "--output", str(path)]) == 1
        assert "--output" in capsys.readouterr().err
    assert main(["bench", "throughput", "--output", str(tmp_path / "r.json")]) == 1
    assert not (tmp_path / "r.json").exists(), "a file that is there says that the run is over"


@pytest.mark.parametrize(
    ("data", "prompts"),
    [
        (b"first\n\nsecond\n", ["first", "second"]),
        (b"first\r\nsecond", ["first", "second"]),
        ("a\u2028b\x85c\x0bd\x0ce\x1cf\n g ".encode(), ["a\u2028b\x85c\x0bd\x0ce\x1cf", " g "]),
        (b"a\rb\n", ["a\rb"]),
    ],
)
def test_prompts_of_standard_input_end_at_newlines_only(data, prompts, monkeypatch, capsys):
    seen = []

    class Loaded:
        def generate(self, prompts, params, use_tqdm):
            seen.extend(prompts)
            return []

    monkeypatch.setattr("workbench.cli.text._load", lambda config: Loaded())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    main(["generate"])
    assert seen == prompts


def test_standard_input_that_is_no_text_or_not_there_is_told(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff\n"), encoding="utf-8"))
    assert main(["generate"]) == 2
    assert "standard input is not text: byte 2 is no utf-8; give UTF-8" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", None)
    assert main(["generate"]) == 2
    assert "there is no prompt" in capsys.readouterr().err


def test_lengths_are_checked_before_prompts_are_drawn(tiny_without_text, capsys, monkeypatch):
    """A thousand million tokens would fill the memory before anybody said that they do not fit."""
    from workbench.measure.workload import Workload

    draw = Workload.prompt

    def watched(self, index, vocab_size, answers=None):
        assert self.input_len(index) < 1000, "a prompt was drawn that does not fit"
        return draw(self, index, vocab_size, answers)

    monkeypatch.setattr(Workload, "prompt", watched)
    flags = ("--model", str(tiny_without_text), "--num-kv-blocks", "64", "--num-threads", "1", "--output-len", "2")
    assert main(["bench", "throughput", *flags, "--num-prompts", "3", "--input-len", "1000000000"]) == 1
    assert "all 3 requests are too long for max_model_len=512" in capsys.readouterr().err
    assert main(["bench", "throughput", *flags, "--num-prompts", "8", "--input-len", "2:1200", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["completed"] + told["rejected"] == 8 and told["completed"] > 0 and told["rejected"] > 0


@pytest.mark.parametrize("command", [["model", "info"], ["model", "fetch"], ["generate", "x"]])
def test_the_environment_names_the_model(command, tiny_without_text, capsys, monkeypatch):
    monkeypatch.setenv("WORKBENCH_MODEL", "")
    assert main(command) == 2
    assert "model='' is empty" in capsys.readouterr().err
    monkeypatch.setenv("WORKBENCH_MODEL", "no-such-model")
    assert main(command) == 2
    assert "no-such-model" in capsys.readouterr().err
    monkeypatch.setenv("WORKBENCH_MODEL", str(tiny_without_text))
    if command[0] == "model":
        assert main([*command, "--json"]) == 0
        assert str(tiny_without_text) in capsys.readouterr().out
        assert main([command[0], command[1], "", "--json"]) == 2, "an empty name is not the default"
        assert "no model ''" in capsys.readouterr().err


def test_an_impossible_prompt_is_wrong_usage(tiny_chat, capsys):
    assert (
        main(["generate", "a b c d e f g h", "--model", str(tiny_chat), "--num-kv-blocks", "1", "--max-tokens", "90"])
        == 2
    )
    assert "num_kv_blocks" in capsys.readouterr().err


def test_a_model_without_a_tokenizer_says_so(tiny_without_text, capsys):
    assert main(["generate", "text", "--model", str(tiny_without_text), *SMALL]) == 2
    assert "tokenizer" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys):
    from workbench.errors import UsageError

    with pytest.raises(UsageError):
        main(["generate", "x", "--max-num-seqs", "0", "--debug"])


def test_an_interrupt_leaves_with_130(tiny_chat, capsys, monkeypatch):
    from workbench.model.runner import ModelRunner

    def stop(self, plan):
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelRunner, "execute", stop)
    assert main(["generate", "x", "--model", str(tiny_chat), *SMALL]) == 130
    assert capsys.readouterr().err.strip().endswith("interrupted")


def test_models(capsys):
    assert main(["model", "list", "--json"]) == 0
    assert "smollm2-135m" in {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert main(["model", "info", "llama-3.1-8b", "--json"]) == 0
    assert "8030261248" in capsys.readouterr().out.replace(",", "")
    assert main(["model", "fetch", "--json"]) == 0, "here already: nothing is downloaded"
    assert Path(json.loads(capsys.readouterr().out)["path"]).is_file()


def test_help_is_quick_because_it_imports_no_torch():
    code = "import sys; from workbench.cli.parser import build_parser; build_parser(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_stop_text_penalties_and_several_answers_take_effect(tiny_chat, capsys):
    def run(*flags: str) -> dict:
        assert main(["generate", "one two three", "--json", "--model", str(tiny_chat), *SMALL, *flags]) == 0
        return lines(capsys)[0]

    plain = run()
    cut = plain["text"][2:4]
    stopped = run("--stop", cut)
    assert stopped["text"] == plain["text"][: plain["text"].index(cut)] and stopped["finish_reason"] == "stop"
    assert run("--min-p", "1", "--temperature", "1.5")["token_ids"] == plain["token_ids"]
    several = run("--n", "3", "--temperature", "1.5", "--seed", "5")
    assert [one["index"] for one in several["outputs"]] == [0, 1, 2]
    assert len({one["text"] for one in several["outputs"]}) > 1
    assert main(["generate", "x", "--model", str(tiny_chat), "--n", "0"]) == 2
    assert "n=0" in capsys.readouterr().err
