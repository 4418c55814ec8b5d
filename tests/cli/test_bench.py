"""``bench serve|latency|sweep|--compare``: keys, counts that must come out, files, refusals. No times are judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.measure.shared_heads import chat
from workbench.measure.workload import uniform_workload

TRACES = Path(__file__).parents[1] / "data/traces"
KEYS = ("completed", "rejected", "request_throughput", "output_throughput", "total_token_throughput", "request_goodput",
        "benchmark", "schema_version", "config", "workload", "provenance")  # fmt: skip
SHORT = ("--num-prompts", "5", "--input-len", "4:20", "--output-len", "2:6")


@pytest.fixture
def bench(capsys, tiny_without_text):
    """Runs ``bench KIND …`` on a tiny model and gives the JSON it printed."""

    def run(kind, *flags, status=0):
        base = ("--model", str(tiny_without_text), "--num-threads", "1", "--num-kv-blocks", "64", "--json")
        assert main(["bench", kind, *flags, *base]) == status
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def refused(capsys, tiny_without_text):
    """Runs ``bench KIND …`` that must be refused and gives the message."""

    def run(kind, *flags, status=2):
        assert main(["bench", kind, *flags, "--model", str(tiny_without_text), "--num-kv-blocks", "64"]) == status
        told = capsys.readouterr().err.strip()
        assert told.splitlines()[-1].startswith("workbench: ")
        return told

    return run


def test_serve_gives_every_key_and_counts_every_token(bench, tmp_path):
    file = tmp_path / "result.json"
    flags = ("--request-rate", "200", "--burstiness", "0.5", "--goodput", "ttft:1e9", "e2el:1e9")
    result = bench("serve", *SHORT, *flags, "--percentiles", "25,99.9", "--seed", "3", "--output", str(file))
    expected = uniform_workload(5, (4, 20), (2, 6), 3)
    assert all(key in result for key in KEYS) and result["benchmark"] == "serve"
    for metric in ("ttft", "tpot", "itl", "e2el", "queue"):
        assert all(f"{kind}_{metric}_ms" in result for kind in ("mean", "median", "std", "p25", "p99", "p99.9"))
    assert (result["completed"], result["rejected"]) == (5, 0)
    assert result["total_input_tokens"] == sum(expected.input_lens)
    assert result["total_output_tokens"] == sum(expected.output_lens)
    assert result["request_goodput"] == result["request_throughput"] and result["slo_attainment"] == 1
    assert result["workload"]["request_rate"] == 200 and result["workload"]["burstiness"] == 0.5
    # The last request is due at 5 / 200 s, so the run cannot be shorter.
    assert result["duration"] >= 0.02
    assert json.loads(file.read_text()) == result


def test_a_closed_loop_never_has_more_requests_than_users(bench):
    result = bench("serve", *SHORT, "--max-concurrency", "2")
    assert result["completed"] == 5 and result["max_batch_size"] == 2
    assert result["workload"]["arrivals"] == "closed loop" and result["workload"]["users"] == 2
    assert "max_concurrency" not in result["workload"]
    assert result["request_goodput"] is None


def test_an_open_loop_may_be_bounded_too(bench):
    result = bench("serve", *SHORT, "--max-concurrency", "1", "--request-rate", "1000")
    assert result["max_batch_size"] == 1 and result["workload"]["max_concurrency"] == 1
    assert result["workload"]["arrivals"] == "gamma"


def test_a_trace_is_replayed_and_what_is_too_long_is_rejected(bench):
    result = bench(
        "serve", "--trace", str(TRACES / "azure_format.csv"), "--trace-speed", "100", "--max-model-len", "30"
    )
    assert (result["completed"], result["rejected"]) == (1, 1)
    assert result["rejections"][0]["index"] == 0 and "max_model_len=30" in result["rejections"][0]["why"]
    assert result["workload"]["format"] == "azure" and result["workload"]["arrivals"] == "replayed"
    longer = bench("serve", "--trace", str(TRACES / "azure_format.csv"), "--request-rate", "inf")
    assert (longer["completed"], longer["workload"]["arrivals"]) == (2, "at once")


@pytest.mark.parametrize(
    ("flags", "kind", "completed"),
    [
        (("--dataset-name", "chat", "--chat-users", "2", "--chat-turns", "2", "--chat-system-len", "0"), "chat", 4),
        (("--dataset-name", "rag", "--num-prompts", "3", "--rag-document-len", "8", "--rag-order", "sorted"), "rag", 3),
        (("--dataset-name", "nano-vllm", "--shrink", "64"), "nano-vllm", 4),
        (("--dataset-name", "prefix_repetition", "--num-prompts", "3", "--prefix-repetition-prefix-len", "9",
          "--request-rate", "500", "--on-off", "1:0.1"), "prefix_repetition", 3),
    ],
)  # fmt: skip
def test_every_kind_of_prompts_is_served(bench, flags, kind, completed):
    sizes = {"chat": ("--input-len", "4", "--output-len", "3"), "rag": ("--input-len", "4", "--output-len", "3")}
    result = bench("serve", *flags, *sizes.get(kind, ()))
    assert (result["completed"], result["rejected"], result["workload"]["kind"]) == (completed, 0, kind)
    if kind == "chat":
        from workbench.measure.lengths import Uniform

        expected = chat(2, 2, 0, Uniform(4, 4), Uniform(3, 3), 0)
        assert result["total_input_tokens"] == sum(expected.input_lens) == 2 * 4 + 2 * (4 + 3 + 4)


def test_latency_times_one_batch_again_and_again(bench):
    result = bench("latency", "--batch-size", "3", "--input-len", "7", "--output-len", "4", "--num-iters", "2")
    assert all(key in result for key in KEYS)
    assert len(result["latencies"]) == 2 and result["completed"] == 6, "the batch before them is not counted"
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (42, 24)
    assert min(result["latencies"]) <= result["median_latency"] <= max(result["latencies"])
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 2)
    assert result["max_batch_size"] == 3 and set(result["percentiles"]) == {"50", "90", "95", "99"}


def test_sweep_runs_every_point_and_draws_it(bench, tmp_path):
    picture, file = tmp_path / "sweep.png", tmp_path / "sweep.json"
    flags = ("--plot", str(picture), "--output", str(file), "--metrics", "output_throughput,mean_batch_size")
    result = bench("sweep", "max_num_seqs=1,2", "request-rate=inf,500", *SHORT, *flags)
    assert result["swept"] == {"max_num_seqs": ["1", "2"], "request_rate": ["inf", "500"]}
    seen = [(p["options"]["max_num_seqs"], p["options"]["request_rate"]) for p in result["points"]]
    assert seen == [("1", "inf"), ("1", "500"), ("2", "inf"), ("2", "500")]
    for point in result["points"]:
        assert point["completed"] == 5 and point["config"]["max_num_seqs"] == int(point["options"]["max_num_seqs"])
        assert point["max_batch_size"] <= int(point["options"]["max_num_seqs"])
        assert point["workload"].get("request_rate") == (500 if point["options"]["request_rate"] == "500" else None)
    assert "max_num_seqs" not in result["config"] and result["config"]["num_kv_blocks"] == 64
    assert picture.read_bytes().startswith(b"\x89PNG") and json.loads(file.read_text()) == result


def test_a_point_that_fails_is_told_and_the_others_go_on(bench, capsys, tiny_without_text, tmp_path):
    picture = tmp_path / "sweep.png"
    result = bench("sweep", "max_model_len=8,200", *SHORT, "--input-len", "20", "--plot", str(picture), status=1)
    failed, good = result["points"]
    assert "max_model_len=8" in failed["error"] and good["completed"] == 5
    assert picture.stat().st_size > 0
    argv = ["bench", "sweep", "max_model_len=8,200", *SHORT, "--input-len", "20", "--model", str(tiny_without_text)]
    assert main(argv) == 1
    told = capsys.readouterr().out
    assert "failed" in told and "max_model_len=8" in told and "output_throughput" in told


def test_compare_gives_ratios_and_says_what_was_different(bench, capsys, tiny_without_text, tmp_path):
    file = str(tmp_path / "then.json")
    then = bench("serve", *SHORT, "--output", file)
    now = bench("serve", *SHORT, "--seed", "1", "--block-size", "8", "--compare", file)
    ratios, differs = now["compare"]["ratios"], now["compare"]["differs"]
    assert ratios["output_throughput"] == pytest.approx(now["output_throughput"] / then["output_throughput"])
    assert ratios["p99_itl_ms"] == pytest.approx(now["p99_itl_ms"] / then["p99_itl_ms"])
    assert ratios["request_goodput"] is None
    assert differs["config"] == {"seed": [0, 1], "block_size": [16, 8]} and differs["workload"] == {"seed": [0, 1]}
    assert "date" not in differs["provenance"]
    flags = ("--model", str(tiny_without_text), "--num-threads", "1", "--num-kv-blocks", "64", "--compare", file)
    assert main(["bench", "serve", *SHORT, *flags]) == 0
    assert "config and workload are the same" in capsys.readouterr().out
    assert main(["bench", "latency", *flags, "--num-iters", "1", "--output-len", "2"]) == 2
    assert "benchmark 'serve'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("serve", "--num-prompts", "0"), ["--num-prompts 0", "at least 1"]),
        (("serve", "--max-concurrency", "0"), ["--max-concurrency 0"]),
        (("serve", "--request-rate", "0"), ["request rate of 0.0"]),
        (("serve", "--burstiness", "2"), ["--burstiness", "--request-rate"]),
        (("serve", "--request-rate", "3", "--burstiness", "2", "--on-off", "1:1"), ["--burstiness", "--on-off"]),
        (("serve", "--dataset-name", "sharegpt"), ["sharegpt", "random", "trace"]),
        (("serve", "--dataset-name", "trace"), ["--trace FILE"]),
        (("serve", "--rag-alpha", "1"), ["--rag-alpha", "dataset random", "only on rag"]),
        (("serve", "--dataset-name", "rag", "--rag-order", "alphabetical"), ["alphabetical", "found, sorted"]),
        (("serve", "--goodput", "itl:4"), ["itl:4", "ttft"]),
        (("serve", "--trace", str(TRACES / "azure_format.csv"), "--trace-speed", "2", "--request-rate", "1"),
         ["--trace-speed", "--request-rate"]),
        (("latency", "--batch-size", "0"), ["--batch-size 0"]),
        (("latency", "--input-len", "600", "--output-len", "1"), ["600", "max_model_len"]),
        (("sweep", "max_num_seqs"), ["max_num_seqs", "OPTION=A,B,C"]),
        (("sweep", "max_num_seqs=1,,2"), ["OPTION=A,B,C"]),
        (("sweep", "max_num_seqs=1,0"), ["max_num_seqs=0", "least is 1"]),
        (("sweep", "max_num_seqs=a"), ["max-num-seqs", "'a'"]),
        (("sweep", "colour=red"), ["colour is no option", "--help"]),
        (("sweep", "a=1", "b=1", "c=1"), ["3 options"]),
        (("sweep", "seed=1", "seed=2"), ["seed is swept twice"]),
        (("sweep", "seed=1", "--metrics", "beauty"), ["beauty", "output_throughput"]),
        (("serve", "--compare", str(TRACES / "azure_format.csv")), ["azure_format.csv", "no benchmark's result"]),
    ],
)  # fmt: skip
def test_refusals_name_the_value_and_the_remedy(refused, argv, words):
    told = refused(*argv)
    assert all(word in told for word in words), told


def test_paths_are_tried_before_the_run(refused, tmp_path):
    absent = str(tmp_path / "absent" / "file")
    for flags in (("serve", "--output", absent), ("serve", "--compare", absent), ("sweep", "seed=1", "--plot", absent)):
        assert absent in refused(*flags, status=1)
    assert f"the trace {absent!r} cannot be read: No such file" in refused("serve", "--trace", absent)


@pytest.mark.parametrize("flags", [("--input-len", "5:4"), ("--percentiles", "101"), ("--on-off", "5")])
def test_texts_that_cannot_be_read_are_wrong_usage(flags, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "serve", *flags])
    assert stopped.value.code == 2
    assert flags[1] in capsys.readouterr().err


def test_when_all_is_rejected_nothing_was_measured(refused):
    told = refused("serve", "--input-len", "600", "--num-prompts", "2", status=1)
    assert "all 2 requests are rejected" in told and "max_model_len=512" in told
