"""Continuous batching over a fake llama.cpp: right answers whatever the batch's size, and full batches."""

from __future__ import annotations

import random

import pytest

from workbench.measure.peers.workers.llama_schedule import Row, serve


def following(tokens: list[int]) -> int:
    """The fake model: a next token that depends on all tokens before it and on their order."""
    state = 7
    for token in tokens:
        state = (state * 31 + token) % 10007
    return state % 97


class Fake:
    """Keys and values are the tokens themselves; whatever a real context would refuse fails here."""

    def __init__(self, n_batch: int) -> None:
        self.n_batch = n_batch
        self.cache: dict[int, list[int]] = {}
        self.batches: list[list[Row]] = []
        self.copies: list[tuple[int, int, int]] = []

    def decode(self, rows):
        assert 0 < len(rows) <= self.n_batch
        self.batches.append(rows)
        tokens = []
        for row in rows:
            held = self.cache.setdefault(row.sequence, [])
            assert row.position == len(held), "a token has a place, and none is left out or computed twice"
            held.append(row.token)
            if row.wanted:
                tokens.append(following(held))
        return tokens

    def copy(self, source, target, length):
        assert target not in self.cache and len(self.cache[source]) >= length
        self.cache[target] = self.cache[source][:length]
        self.copies.append((source, target, length))

    def drop(self, sequence):
        del self.cache[sequence]


def expected(prompt, length):
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(following(tokens))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("n_batch", [1, 3, 16, 1000])
def test_answers_do_not_depend_on_the_batch(n_batch):
    chance = random.Random(n_batch)
    prompts = [[chance.randrange(97) for _ in range(chance.randint(1, 40))] for _ in range(7)]
    lens = [chance.randint(1, 12) for _ in prompts]
    context = Fake(n_batch)
    came = []
    assert serve(context, prompts, lens, first=lambda: came.append(len(context.batches))) == [
        expected(prompt, length) for prompt, length in zip(prompts, lens, strict=True)
    ]
    assert context.cache == {}, "what is done is dropped"
    # The last token of an answer is never computed; all others are, once.
    assert sum(map(len, context.batches)) == sum(map(len, prompts)) + sum(lens) - len(lens)


def test_running_sequences_go_first_and_prompts_fill_the_batch():
    context = Fake(8)
    serve(context, [[1] * 4, [2] * 20], [10, 1])
    assert [len(rows) for rows in context.batches[:3]] == [8, 8, 8]
    assert [row.sequence for row in context.batches[1]] == [0] + [1] * 7
    assert context.copies == []


@pytest.mark.parametrize("n_batch", [4, 64])
def test_a_shared_head_is_computed_once_and_copied(n_batch):
    head = list(range(10))
    prompts = [[*head, 50 + index, 60] for index in range(4)]
    context = Fake(n_batch)
    assert serve(context, prompts, [3] * 4, head=10) == [expected(prompt, 3) for prompt in prompts]
    assert context.copies == [(0, target, 10) for target in (1, 2, 3)]
    assert sum(map(len, context.batches)) == 10 + 4 * (2 + 2)


def test_of_a_prompt_that_is_all_head_the_last_token_is_computed():
    prompts = [[1, 2, 3], [1, 2, 3]]
    context = Fake(16)
    assert serve(context, prompts, [2, 2], head=3) == [expected([1, 2, 3], 2)] * 2
    assert context.copies == [(0, 1, 2)]


def test_the_first_token_is_told_when_it_is_there():
    context = Fake(4)
    told = []
    serve(context, [list(range(10))], [3], first=lambda: told.append(len(context.batches)))
    assert told[0] == 3, "the prompt takes three batches and the third gives the first token"
