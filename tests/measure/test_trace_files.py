"""Readers of public traces: small files of each format, every kind of bad row, and the real files where they lie."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from workbench.errors import UsageError, WorkbenchError
from workbench.measure.trace_files import read_trace, trace_lengths, trace_workload

HERE = Path(__file__).parents[1] / "data/traces"
REAL = Path(os.environ.get("WORKBENCH_TRACES") or Path(__file__).parents[3] / "shared/traces")
"""Where the public traces lie, if they do; the project carries none."""
MOONCAKE, AZURE, BURSTGPT = (HERE / f"{name}" for name in ("mooncake_format.jsonl", "azure_format.csv",
                                                            "burstgpt_format.csv"))  # fmt: skip


def test_mooncake_blocks_are_shared_token_by_token():
    workload = trace_workload(MOONCAKE, seed=3)
    assert [ask.arrival for ask in workload.asks] == [0.0, 0.5, 3.0], "milliseconds become seconds from the first"
    assert workload.input_lens == (1030, 1024, 600) and workload.output_lens == (5, 7, 2)
    one, two, three = workload.prompts(500)
    assert [len(p) for p in (one, two, three)] == [1030, 1024, 600]
    assert one[:1024] == two, "hash ids 0 and 1 are the same tokens"
    assert three[:512] == one[:512] and three[512:520] != one[512:520], "only hash id 0"
    assert trace_workload(MOONCAKE, seed=4).prompts(500)[1] != two


def test_azure_dates_are_seconds_over_midnight():
    workload = trace_workload(AZURE, seed=0)
    assert [ask.arrival for ask in workload.asks] == [0.0, pytest.approx(1.75)]
    assert workload.input_lens == (40, 7) and workload.output_lens == (3, 12)
    assert workload.description["format"] == "azure" and workload.description["file"] == AZURE.name


def test_burstgpt_leaves_failed_requests_out_and_counts_them():
    workload = trace_workload(BURSTGPT, seed=0, speed=2.0)
    assert [ask.arrival for ask in workload.asks] == [0.0, 56.5]
    assert workload.input_lens == (472, 417) and workload.output_lens == (18, 276)
    assert (workload.description["unanswered"], workload.description["num_prompts"]) == (1, 2)


@pytest.mark.parametrize("path", [MOONCAKE, AZURE, BURSTGPT])
def test_gzip_is_known_by_its_bytes_and_a_limit_takes_the_first(path, tmp_path):
    packed = tmp_path / "trace"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(packed).rows == read_trace(path).rows
    assert read_trace(path, limit=1).rows == read_trace(path).rows[:1]
    marked = tmp_path / "marked"
    marked.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_trace(marked).rows == read_trace(path).rows


def test_lengths_of_a_trace_can_be_drawn_from():
    prompts, answers = trace_lengths(read_trace(AZURE), "azure")
    assert prompts.counts == (40, 7) and answers.counts == (3, 12) and str(prompts) == "prompts of azure"


GOOD = {MOONCAKE: 3, AZURE: 2, BURSTGPT: 3}
MOON = '{{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": {}}}'


@pytest.mark.parametrize(
    ("path", "row", "words"),
    [
        (MOONCAKE, "{not json", "no object"),
        (MOONCAKE, '{"timestamp": 9000}', "input_length"),
        (MOONCAKE, "[1, 2]", "no object"),
        (MOONCAKE, MOON.format(9000, 0, 5, "[]"), "0 prompt tokens"),
        (MOONCAKE, MOON.format(9000, "true", 5, "[1]"), "True prompt tokens"),
        (MOONCAKE, MOON.format(9000, 20, -1, "[1]"), "-1 answer tokens"),
        (MOONCAKE, MOON.format(9000, 513, 1, "[1]"), "1 hash_ids for 513 tokens"),
        (MOONCAKE, MOON.format(9000, 20, 1, '["a"]'), "hash_ids="),
        (MOONCAKE, MOON.format("NaN", 20, 1, "[1]"), "finite"),
        (MOONCAKE, MOON.format(100, 20, 1, "[1]"), "goes back"),
        (AZURE, "2024-03-02 00:00:00.0,5", "2 cells"),
        (AZURE, "soon,5,6", "TIMESTAMP='soon'"),
        (AZURE, "2024-03-02 00:00:00.0,5.5,6", "ContextTokens='5.5'"),
        (AZURE, "2024-03-02 00:00:00.0,-5,6", "-5 prompt tokens"),
        (BURSTGPT, "200,ChatGPT,x,18,490,Conversation log", "Request tokens='x'"),
        (BURSTGPT, "inf,ChatGPT,4,18,490,Conversation log", "finite"),
        (BURSTGPT, "3,ChatGPT,4,18,490,Conversation log", "goes back"),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(path, row, words, tmp_path):
    broken = tmp_path / path.name
    broken.write_bytes(path.read_bytes().rstrip(b"\r\n") + b"\n" + row.encode() + b"\n")
    head = 0 if path == MOONCAKE else 1
    with pytest.raises(UsageError) as refused:
        read_trace(broken)
    assert f"{path.name}, line {GOOD[path] + head + 1}: " in str(refused.value) and words in str(refused.value)
    assert read_trace(broken, limit=2).rows == read_trace(path, limit=2).rows, "what comes before can be read"


def test_files_that_are_no_trace(tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="ContextTokens"):
        read_trace(other)
    other.write_text("")
    with pytest.raises(UsageError, match="no trace"):
        read_trace(other)
    other.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(UsageError, match="no answered request"):
        read_trace(other)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(AZURE.read_bytes())[:-12])
    with pytest.raises(WorkbenchError, match=r"cut\.gz is damaged"):
        read_trace(cut)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_trace(tmp_path / "absent")


def real(name):
    if not (REAL / name).exists():
        pytest.skip(f"the public trace {name} is not on this machine")
    return REAL / name


def test_the_azure_code_trace_whole():
    workload = trace_workload(real("azure_code_2023.csv.gz"), seed=0)
    assert len(workload.asks) == 8819 and workload.description["unanswered"] == 0
    assert sum(workload.input_lens) / 8819 == pytest.approx(2048, abs=1)
    assert sum(workload.output_lens) / 8819 == pytest.approx(28, abs=0.5)
    assert 56 < workload.asks[-1].arrival / 60 < 58


def test_the_mooncake_conversation_trace():
    """Its infinite-cache share of block hits is 0.366, counted here from nothing but the names of pieces."""
    workload = trace_workload(real("mooncake_conversation.jsonl.gz"), seed=0)
    assert len(workload.asks) == 12031 and workload.asks[-1].arrival == pytest.approx(3537, abs=1)
    assert sum(workload.input_lens) / 12031 == pytest.approx(12035, abs=1)
    assert sum(workload.output_lens) / 12031 == pytest.approx(343, abs=1)
    seen: set[str] = set()
    hits = blocks = 0
    for ask in workload.asks:
        names = [piece.name for piece in ask.pieces]
        blocks += len(names)
        hits += next((i for i, name in enumerate(names) if name not in seen), len(names))
        seen.update(names)
    assert hits / blocks == pytest.approx(0.366, abs=0.001)
