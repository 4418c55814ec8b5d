"""The four workloads: drawn once by a seed, of the stated lengths, told by the stated figures."""

from __future__ import annotations

import pytest

from workbench.errors import UsageError
from workbench.measure.peers.workloads import NAMES, jobs

VOCABULARY = 1000


def test_a_workload_is_its_seed_whatever_else_is_asked_for():
    assert jobs(NAMES, VOCABULARY, 3) == jobs(NAMES, VOCABULARY, 3) != jobs(NAMES, VOCABULARY, 4)
    for job in jobs(NAMES, VOCABULARY, 3):
        assert jobs([job.name], VOCABULARY, 3) == [job]
        assert {type(token) for prompt in job.prompts for token in prompt} == {int}
        assert min(map(min, job.prompts)) >= 0 and max(map(max, job.prompts)) < VOCABULARY


def test_lengths_are_those_of_the_titles():
    a, b, c, d = jobs(NAMES, VOCABULARY, 0)
    assert ([len(p) for p in a.prompts], a.output_lens) == ([128], [128])
    assert len(b.prompts) == len(b.output_lens) == 32
    assert all(16 <= len(p) <= 512 for p in b.prompts) and all(16 <= n <= 256 for n in b.output_lens)
    assert len({len(p) for p in b.prompts}) > 20 and len(set(b.output_lens)) > 20
    assert ([len(p) for p in c.prompts], c.output_lens) == ([2048], [1])
    assert [len(p) for p in d.prompts] == [1056] * 16 and d.output_lens == [32] * 16
    heads = {tuple(p[: d.head]) for p in d.prompts}
    assert d.head == 1024 and len(heads) == 1 and len({p[1024] for p in d.prompts}) > 1
    assert (d.total_tokens, d.longest) == (16 * 1088, 1088)


def test_figures():
    a, b, c, d = jobs(NAMES, VOCABULARY, 0)
    assert a.figure(3.0, 1.0) == 127 / 2
    assert b.figure(10.0, 1.0) == sum(b.output_lens) / 10
    assert c.figure(4.0, 4.0) == 512
    assert d.figure(7.5, 1.0) == 7.5
    assert [job.more_is_better for job in (a, b, c, d)] == [True, True, True, False]


@pytest.mark.parametrize(("seconds", "first"), [(0.0, 0.0), (1.0, 2.0), (-1.0, 0.0), (float("nan"), 0.0)])
def test_times_that_cannot_be_are_refused(seconds, first):
    for job in jobs(NAMES, VOCABULARY, 0):
        with pytest.raises(ValueError, match="cannot be"):
            job.figure(seconds, first)


def test_a_stream_without_a_first_token_has_no_decode_time():
    with pytest.raises(ValueError, match="no decode time"):
        jobs(["a"], VOCABULARY, 0)[0].figure(1.0, 0.0)


def test_answers_must_have_the_tokens_asked_for():
    [job] = jobs(["b"], VOCABULARY, 0)
    right = [[0] * n for n in job.output_lens]
    job.check(right)
    with pytest.raises(ValueError, match=f"answer 3 has {job.output_lens[3] + 1} tokens, not {job.output_lens[3]}"):
        job.check([*right[:3], [0] * (job.output_lens[3] + 1), *right[4:]])
    with pytest.raises(ValueError, match="31 answers came for 32 requests"):
        job.check(right[:-1])


def test_a_name_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"--workloads 'e'.*a, b, c, d"):
        jobs(["a", "e"], VOCABULARY, 0)
