"""Scores against what is said once more: every token once, with all of its window before it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm
from workbench.errors import UsageError, WorkbenchError
from workbench.measure.evaluate import Record, Scored, Windows, score, summary

VOCAB = 13


def fading(ids: list[int]) -> torch.Tensor:
    """Logits that depend on all tokens before, the latest most."""
    rows, state = [], torch.zeros(VOCAB)
    for i in ids:
        state = 0.7 * state + torch.sin(torch.arange(VOCAB) * (i + 1.0))
        rows.append(3 * state)
    return torch.stack(rows)


def other(ids: list[int]) -> torch.Tensor:
    return fading(ids).roll(1, -1) + fading(ids)


@given(st.integers(0, 70), st.integers(2, 20), st.data())
@settings(max_examples=80, deadline=None)
def test_each_token_is_scored_once_with_its_window_before_it(length, window, data):
    bos = data.draw(st.sampled_from([None, 0]))
    stride = data.draw(st.integers(1, window - (bos is not None)))
    spans = list(Windows(window, stride, bos).spans(length))
    scored = [token for _, first, end in spans for token in range(first, end)]
    assert scored == sorted(set(scored))
    left_out = set(range(length)) - set(scored)
    # Without BOS nothing is before a window's first token; where windows do not overlap none scores it.
    assert left_out <= (set() if bos is not None else {0} if stride < window else set(range(0, length, stride)))
    for begin, first, end in spans:
        assert begin % stride == 0 and end - begin + (bos is not None) <= window
        assert first > begin or bos is not None
        assert begin == 0 or end == length or end - begin + (bos is not None) == window


@pytest.mark.parametrize("bos", [None, 4])
@pytest.mark.parametrize(("window", "stride"), [(8, 3), (8, 7), (40, 5)])
def test_sums_equal_those_of_one_token_at_a_time(bos, window, stride):
    ids = [(7 * i * i + 3 * i) % VOCAB for i in range(31)]
    windows = Windows(window, stride, bos)
    parts = list(score(ids, windows, other, fading))
    nats = kl = agreed = count = 0
    for begin, first, end in windows.spans(len(ids)):
        for token in range(first, end):
            shown = ([] if bos is None else [bos]) + ids[begin:token]
            q, p = (of(shown)[-1].double().log_softmax(-1) for of in (other, fading))
            nats -= float(q[ids[token]])
            kl += float((p.exp() * (p - q)).sum())
            agreed += int(p.argmax() == q.argmax())
            count += 1
    row = summary(parts, windows, "text")
    assert row["tokens"] == count == len(ids) - (bos is None)
    assert row["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-5)
    assert row["kl"] == pytest.approx(kl / count, rel=1e-5)
    assert row["top1_agreement"] == agreed / count and 0 < agreed < count
    assert (row["window"], row["stride"], row["bos"], row["unit"]) == (window, stride, bos is not None, "token")


def test_a_model_is_no_way_from_itself_and_without_reference_nothing_is_compared():
    windows, ids = Windows(8, 4), list(range(12))
    same = summary(list(score(ids, windows, fading, fading)), windows, "")
    assert same["kl"] == 0 and same["top1_agreement"] == 1
    alone = summary(list(score(ids, windows, fading)), windows, "")
    assert alone["kl"] is None and alone["top1_agreement"] is None
    assert alone["perplexity"] == same["perplexity"]


def test_the_engines_score_equals_transformers_loss(tmp_path):
    model = make_tiny("smollm2", tmp_path, seed=1)
    ids = [(11 * i + i * i) % 211 for i in range(40)]
    with torch.inference_mode():
        loss = float(model(torch.tensor([ids]), labels=torch.tensor([ids])).loss)
    windows = Windows(64, 64)
    row = summary(list(score(ids, windows, open_llm(tmp_path).runner.logits)), windows, "")
    assert row["perplexity"] == pytest.approx(math.exp(loss), rel=1e-4) and row["tokens"] == 39


def test_a_stopped_run_goes_on(tmp_path):
    file, run = tmp_path / "scored.jsonl", {"model": "a"}
    ids, windows = [i * i % VOCAB for i in range(40)], Windows(8, 4)
    whole = list(score(ids, windows, fading))
    record = Record(file, run)
    for part in whole[:3]:
        record.add(part)
    with file.open("a") as opened:
        opened.write('{"begin": 99, "tok')  # the power went
    again = Record(file, run)
    assert again.kept == whole[:3]
    calls: list[int] = []

    def counted(shown):
        calls.append(len(shown))
        return fading(shown)

    assert list(score(ids, windows, counted, kept=again.kept)) == whole and len(calls) == len(whole) - 3
    again.add(whole[3])
    assert Record(file, run).kept == whole[:4]
    with pytest.raises(UsageError, match="another run"):
        Record(file, {"model": "b"})


def test_what_cannot_be_scored_is_refused():
    for window, stride, bos, named in ((1, 1, None, "at least 2"), (8, 9, None, "1 to 8"), (8, 8, 0, "1 to 7")):
        with pytest.raises(UsageError, match=named):
            Windows(window, stride, bos)
    with pytest.raises(UsageError, match="no token"):
        summary(list(score([3], Windows(8, 4), fading)), Windows(8, 4), "")
    with pytest.raises(WorkbenchError, match="not finite"):
        list(score([1, 2, 3], Windows(8, 4), lambda ids: torch.full((len(ids), VOCAB), torch.nan)))
    assert Scored(0, 1, 0.5).kl is None
