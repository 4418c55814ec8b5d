"""Notebook 14's exercises against the engine: what is cut, what leaves, and that a swapped function decides it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.paged_fake import answer_alone, greedy, open_engine
from workbench.engine.engine import Engine
from workbench.kv.eviction import Node
from workbench.kv.prefix_index import PrefixIndex, pack
from workbench.kv.radix import RadixIndex
from workbench.lab.exercises import exercise
from workbench.lab.exercises.nb14 import unpacked

CUT, VICTIM = exercise("14", "radix-cut"), exercise("14", "victim")
SIZE = 4


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


def head(number: int, blocks: int = 3) -> list[int]:
    return [(number * 7 + place * 3) % 40 for place in range(blocks * SIZE)]


def serve(engine: Engine, prompts: Sequence[list[int]]) -> int:
    """One after the other, each answered as it would be alone; the tokens that were not computed."""
    for prompt in prompts:
        request = engine.requests[engine.add_request(prompt, greedy(2))]
        while engine.has_unfinished():
            engine.step()
            engine.pool.check()
        assert request.output_token_ids == answer_alone(prompt, request.params, 100)[0]
    return engine.stats()["prefix_hit_tokens"]


def warm(**options: Any) -> Engine:
    return open_engine(enable_prefix_caching=True, **options)


tokens = st.lists(st.integers(0, 2), max_size=14)


@given(tokens, tokens, st.integers(1, 4), st.integers(1, 14))
def test_a_node_is_cut_where_the_engine_cuts_it(one: list[int], other: list[int], size: int, most: int) -> None:
    first = [9] * size  # the engine asks only where the first block is equal
    one, other = first + one, first + other[: len(other) // size * size]
    index, node = RadixIndex(size), Node(None, b"", list(range(len(other) // size)), 0)
    node.tokens = bytearray(pack(other))
    most = min(most, len(one) // size)
    own = index._common(bytearray(pack(one)), 0, node, most)
    for function in (CUT.function, CUT.reference):
        front, rear = function(one[: most * size], other, size)
        assert len(front) == own * size and front + rear == other


def test_packed_tokens_come_back() -> None:
    ids = [0, 1, 255, 256, 49_151, (1 << 32) - 1]
    assert unpacked(pack(ids)) == ids and unpacked(bytearray(pack(ids))) == ids


def branches() -> list[list[int]]:
    """The first two share all three blocks of a head, the others any number of its tokens."""
    draw = Random(1)
    return [
        [*head(0)[:shared], *(draw.randrange(40) for _ in range(5))]
        for shared in [12, 12, *(draw.randint(1, 12) for _ in range(22))]
    ]


def test_the_tree_is_cut_by_the_readers_function() -> None:
    own, before = RadixIndex._common, serve(warm(), branches())
    with CUT.use(CUT.function) as used:
        assert serve(warm(), branches()) == before
    assert used.who == "your function" and used.calls > 20
    assert RadixIndex._common is own
    # That it is this function that counts: with the first block alone there are fewer hits, and no wrong answer.
    with CUT._swapped(lambda tokens, node, size: (node[:size], node[size:])):
        assert 0 < serve(warm(), branches()) < before


def test_a_cut_that_shares_too_much_gives_wrong_answers() -> None:
    with (
        CUT._swapped(lambda tokens, node, size: (node[: len(tokens) // size * size], [])),
        pytest.raises(AssertionError),
    ):
        serve(warm(), branches())


def scans(rounds: int = 12) -> list[list[int]]:
    """Two heads that come twice and then again and again, and in between prompts that come once."""
    draw = Random(2)
    asked = [[*head(number), draw.randrange(40)] for number in (0, 0, 1, 1)]
    for number in range(rounds):
        asked.append([*head(number % 2), draw.randrange(40)])
        asked.append([39 - number % 30, *(draw.randrange(40) for _ in range(4 * SIZE))])
    return asked


@pytest.mark.parametrize("index", ["radix", "hash"])
@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_who_leaves_is_the_readers_to_say(index: str, policy: str) -> None:
    small = {"num_kv_blocks": 12, "prefix_index": index, "eviction_policy": policy}
    own, before = PrefixIndex.evict, serve(warm(**small), scans())
    with VICTIM.use(VICTIM.function) as used:
        kept = serve(warm(**small), scans())
    assert used.calls > 10 and PrefixIndex.evict is own
    assert kept >= before and (policy != "lru" or kept > 2 * before)
    assert serve(warm(**small), scans()) == before


def test_a_victim_that_may_not_go_is_noticed() -> None:
    """A head whose tail stays is missed by the pool's own check."""

    def inner(nodes: list[dict[str, int]]) -> int | None:
        return next((place for place, node in enumerate(nodes) if node["children"] and not node["holders"]), 0)

    with VICTIM._swapped(inner), pytest.raises((AssertionError, KeyError, RuntimeError)):
        serve(warm(num_kv_blocks=12), [*branches(), *scans()])


def test_nobody_to_go_is_told() -> None:
    with VICTIM._swapped(lambda nodes: None), pytest.raises(LookupError, match="nothing can be given up"):
        serve(warm(num_kv_blocks=12), scans())


def test_by_hand_the_least_used_is_not_the_answer() -> None:
    """Ranked by the number of uses, and then by age, the examples alone say that it is wrong."""

    def least_used(nodes: list[dict[str, int]]) -> int | None:
        free = [place for place, node in enumerate(nodes) if not node["holders"] and not node["children"]]
        return min(free, key=lambda place: (nodes[place]["uses"], nodes[place]["last_use"]), default=None)

    right = [VICTIM.function(*example.arguments) == example.result for example in VICTIM.examples]
    assert all(right) and right != [least_used(*example.arguments) == example.result for example in VICTIM.examples]
