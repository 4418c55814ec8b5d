"""Workloads: decided by the seed; what they share, they share token by token and no more."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from workbench.errors import UsageError
from workbench.measure.lengths import Uniform
from workbench.measure.shared_heads import chat, groups, rag
from workbench.measure.workload import Answer, Ask, Piece, Workload, piece_tokens, plain_workload, published_workload

TAIL, OUT = Uniform(3, 9), Uniform(2, 4)
VOCAB = 1000


def common(a, b):
    """Tokens in common at the start."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_a_piece_is_its_seed_and_name_and_the_short_one_begins_the_long_one():
    long = piece_tokens(1, "system", 200, VOCAB)
    assert piece_tokens(1, "system", 50, VOCAB) == long[:50]
    assert common(long, piece_tokens(2, "system", 200, VOCAB)) < 3
    assert common(long, piece_tokens(1, "systen", 200, VOCAB)) < 3
    assert set(piece_tokens(1, "x", 500, 5)) == set(range(5))


def test_tokens_are_the_same_in_another_process():
    """Python salts the hash of texts anew in every process; the tokens must not depend on it."""
    code = "from workbench.measure.workload import piece_tokens; print(piece_tokens(3, 'system', 5, 1000))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(piece_tokens(3, "system", 5, 1000))


def test_plain_prompts_have_nothing_in_common():
    prompts = plain_workload(20, Uniform(30, 30), OUT, 0).prompts(VOCAB)
    assert max(common(a, b) for i, a in enumerate(prompts) for b in prompts[:i]) < 3


def test_groups_share_their_head_and_nothing_else():
    workload = groups(23, 4, 50, TAIL, OUT, seed=7)
    assert workload == groups(23, 4, 50, TAIL, OUT, seed=7) != groups(23, 4, 50, TAIL, OUT, seed=8)
    prompts = workload.prompts(VOCAB)
    assert [len(prompt) for prompt in prompts] == list(workload.input_lens)
    heads = Counter(tuple(prompt[:50]) for prompt in prompts)
    assert sorted(heads.values()) == [5, 6, 6, 6]
    for index, prompt in enumerate(prompts):
        for other in prompts[:index]:
            shared = common(prompt, other)
            assert shared < 3 or 50 <= shared < 53
    assert [prompt[:50] for prompt in prompts[:4]] != [prompt[:50] for prompt in prompts[4:8]], "shuffled"


def test_a_chat_repeats_the_talk_with_the_answers_that_came():
    workload = chat(2, 3, system_len=10, questions=TAIL, outputs=Uniform(2, 2), seed=1, think_time=1.5)
    assert len(workload.asks) == 6 and workload.num_arrivals == 2
    assert [ask.after for ask in workload.asks] == [None, None, 0, 1, 2, 3]
    assert {ask.arrival for ask in workload.asks[2:]} == {1.5}
    first, second = workload.prompt(0, VOCAB), workload.prompt(2, VOCAB, {0: [7, 8]})
    assert second[: len(first) + 2] == [*first, 7, 8]
    third = workload.prompt(4, VOCAB, {0: [7, 8], 2: [5, 6]})
    assert third[: len(second) + 2] == [*second, 5, 6]
    assert len(third) == workload.input_len(4)
    assert common(first, workload.prompt(1, VOCAB)) in range(10, 13), "users share the system prompt"
    with pytest.raises(UsageError, match="answer to request 0"):
        workload.prompt(2, VOCAB)


def test_rag_asks_for_popular_documents_more_and_never_twice_in_one_prompt():
    workload = rag(3000, 20, 8, 3, TAIL, OUT, seed=2, alpha=1.0)
    names = [[p.name for p in ask.pieces if p.name.startswith("document")] for ask in workload.asks]
    assert all(len(set(found)) == 3 for found in names)
    first = Counter(found[0] for found in names)
    total = sum(1 / k for k in range(1, 21))
    # Chi-square with 19 degrees of freedom: 36.2 at a level of 1 %.
    expected = [3000 / k / total for k in range(1, 21)]
    assert sum((first[f"document {k}"] - e) ** 2 / e for k, e in enumerate(expected)) < 36.2
    prompt = workload.prompt(0, VOCAB)
    assert prompt[:8] == piece_tokens(2, names[0][0], 8, VOCAB)


def test_sorted_rag_has_the_same_documents_and_more_common_heads():
    found, ordered = (rag(40, 6, 8, 3, TAIL, OUT, seed=2, sort=sort) for sort in (False, True))
    for a, b in zip(found.asks, ordered.asks, strict=True):
        assert {*a.pieces} == {*b.pieces} and a.output_len == b.output_len
    assert len({ask.pieces[:3] for ask in ordered.asks}) < len({ask.pieces[:3] for ask in found.asks})
    assert found.description != ordered.description


def test_the_published_workload_whole_and_shrunk():
    whole, small = published_workload(1, 0), published_workload(8, 0)
    assert len(whole.asks) == 256 and len(small.asks) == 32
    for lens in (whole.input_lens, whole.output_lens):
        assert 100 <= min(lens) < 120 and 1000 < max(lens) <= 1024
    for lens in (small.input_lens, small.output_lens):
        assert 12 <= min(lens) < 25 and 115 < max(lens) <= 128


def test_other_arrivals_leave_the_requests_as_they_are():
    workload = chat(2, 2, 0, TAIL, OUT, seed=1, think_time=3.0)
    moved = workload.arriving([5.0, 6.0], {"arrivals": "by hand"})
    assert [ask.arrival for ask in moved.asks] == [5.0, 6.0, 3.0, 3.0]
    assert [replace(ask, arrival=0.0) for ask in moved.asks] == [replace(ask, arrival=0.0) for ask in workload.asks]
    assert moved.description["arrivals"] == "by hand" and "arrivals" not in workload.description
    assert workload.arriving([5.0, 6.0]) == replace(moved, description=workload.description)


@pytest.mark.parametrize(
    "ask",
    [
        Ask((Piece("a", 1),), 1, after=1),
        Ask((Answer(0),), 1),
        Ask((Answer(1),), 1, after=0),
    ],
)
def test_a_request_cannot_build_on_what_is_not_there(ask):
    with pytest.raises(ValueError, match="request 1"):
        Workload((Ask((Piece("a", 1),), 1), ask), 0, {})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: groups(4, 0, 5, TAIL, OUT, 0), "num_groups=0"),
        (lambda: chat(2, 0, 5, TAIL, OUT, 0), "turns=0"),
        (lambda: chat(2, 1, 5, TAIL, OUT, 0, think_time=-1), "think_time=-1"),
        (lambda: rag(4, 3, 5, 4, TAIL, OUT, 0), "4 documents a prompt"),
        (lambda: plain_workload(2, TAIL, OUT, 0).with_users(0), "0 users"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


def test_workloads_need_no_torch():
    code = (
        "import sys, workbench.measure.shared_heads, workbench.measure.trace_files, workbench.measure.drive\n"
        "import workbench.measure.metrics, workbench.measure.compare; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
