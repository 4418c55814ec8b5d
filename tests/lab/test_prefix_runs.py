"""Prompts through the pool: beside an engine's traces, and beside a comparison of every pair token by token."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.engine.paged_fake import greedy, open_engine
from workbench.errors import UsageError
from workbench.kv.caching_pool import INDEXES, CachingPool
from workbench.kv.eviction import EVICTION
from workbench.kv.prefix_index import pack
from workbench.lab.prefix_runs import PromptRun, run_prompts
from workbench.lab.token_text import numbers
from workbench.lab.tree_snapshot import AGAIN, HIT, NEW, TreeSnapshot, leaving_line

WAYS = [(index, policy, size) for index in INDEXES for policy in EVICTION for size in (1, 4, 16)]


def prompts_of(draw: Random, count: int, size: int) -> dict[str, list[int]]:
    """Prompts that go on where others end, part from them, or are all new."""
    said: list[list[int]] = []
    for _ in range(count):
        tokens = [draw.randrange(3) for _ in range(draw.randint(1, 5 * size))]
        if said and draw.random() < 0.7:
            head = draw.choice(said)
            tokens = head[: draw.randint(1, len(head))] + tokens[: draw.randint(0, len(tokens))]
        said.append(tokens or [1])
    return {f"p{number}": tokens for number, tokens in enumerate(said)}


def common(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@pytest.mark.parametrize(
    ("index", "policy", "size", "partial"),
    [(*way, partial) for way in WAYS for partial in (False, True) if way[2] > 1 or not partial],
)
def test_an_engine_finds_and_gives_up_the_same(index: str, policy: str, size: int, partial: bool) -> None:
    """The same prompts one after the other through a real engine: same hits, same evictions, the same tree."""
    evicted = hits = copied = 0
    for seed in range(4):
        prompts = prompts_of(Random(seed), 14, size)
        most = max(map(len, prompts.values()))
        num_blocks = -(-most // size) + Random(seed).choice([1, 4])
        engine = open_engine(num_kv_blocks=num_blocks, block_size=size, max_model_len=num_blocks * size,
                             max_num_batched_tokens=most + 1, enable_prefix_caching=True, prefix_index=index,
                             eviction_policy=policy, prefix_partial_reuse=partial)  # fmt: skip
        pool = engine.pool
        assert isinstance(pool, CachingPool)
        runs = run_prompts(prompts, num_blocks=num_blocks, block_size=size, prefix_index=index,
                           eviction_policy=policy, partial=partial)  # fmt: skip
        for run, (name, tokens) in zip(runs, prompts.items(), strict=True):
            engine.add_request(tokens, greedy(1), request_id=name)
            trace = engine.step()
            assert trace.cached_tokens == run.hit_tokens
            assert trace.blocks["evicted"] == len(run.evicted)
            assert not engine.has_unfinished() and not run.refused
            assert pool.stats == run.stats
            assert shape(TreeSnapshot.of(pool)) == shape(run.tree), "only who holds it differs"
            hits, evicted = hits + run.hit_tokens, evicted + len(run.evicted)
            copied += run.copied_from is not None
    assert hits and evicted, "a test without hits or evictions shows nothing"
    assert bool(copied) == partial


def shape(tree: TreeSnapshot) -> list[tuple[object, ...]]:
    return sorted((tuple(node.blocks), node.parent is None, node.born, node.uses) for node in tree.nodes)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("size", [1, 4, 16])
def test_with_room_for_all_the_hit_is_the_best_common_head(index: str, size: int) -> None:
    """Every earlier prompt is compared token by token; the last token is always computed."""
    prompts = prompts_of(Random(size), 30, size)
    before: list[list[int]] = []
    for run, tokens in zip(run_prompts(prompts, num_blocks=4000 // size, block_size=size, prefix_index=index),
                           prompts.values(), strict=True):  # fmt: skip
        # What an earlier prompt left is its full blocks.
        best = max((min(common(tokens, other), len(other) // size * size) for other in before), default=0)
        assert run.hit_tokens == min(best, len(tokens) - 1) // size * size
        assert run.evicted == () and run.hit_tokens == size * run.hit_blocks
        before.append(tokens)
    assert len(before) == 30


@pytest.mark.parametrize(("index", "policy", "size"), WAYS)
def test_marks_and_what_went_account_for_every_block(index: str, policy: str, size: int) -> None:
    seen = dict.fromkeys((HIT, NEW, AGAIN, "gone"), 0)
    for seed in range(6):
        prompts = prompts_of(Random(seed + 50), 16, size)
        runs = run_prompts(prompts, num_blocks=8, block_size=size, prefix_index=index, eviction_policy=policy,
                           keep=["p3", "p7"] if seed % 2 else [])  # fmt: skip
        known: set[int] = set()
        for run in runs:
            tree = run.tree
            marks = {block: mark for node in tree.nodes for block, mark in zip(node.blocks, node.marks, strict=True)}
            found = [mark for mark in marks.values() if mark]
            assert found.count(HIT) == run.hit_blocks and found.count(NEW) == run.new_blocks
            gone = [block for item in tree.gone for block in item.blocks]
            assert sorted(gone) == sorted(run.evicted) and set(gone) <= known
            assert set(marks) == (known - set(gone)) | {block for block, mark in marks.items() if mark == NEW}
            known = set(marks)
            assert tree.num_free is not None
            assert tree.num_free + tree.num_cached + tree.num_held + tree.held_elsewhere == tree.num_blocks == 8
            for mark in found:
                seen[mark] += 1
            seen["gone"] += len(gone)
    assert all(seen[mark] for mark in (HIT, NEW, "gone")), seen
    assert seen[AGAIN] or size > 1, "a prompt sent twice computes its last token again"


def test_what_goes_is_the_front_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that a snapshot tells is the order in which blocks are really given up, whatever the policy."""
    for index, policy, size in WAYS:
        draw = Random(7)
        pool = CachingPool(60, size, index, policy)
        for name, tokens in prompts_of(draw, 12, size).items():
            pool.enroll(name)
            pool.open(name)
            pool.adopt(name, pool.match(name, tokens, (len(tokens) - 1) // size))
            pool.grow(name, pool.blocks_for(len(tokens)) - len(pool.tables[name]))
            pool.publish(name, tokens, len(tokens))
            if name not in ("p2", "p5"):
                pool.release(name)
        line = leaving_line(pool.index)
        pool.check()
        assert line == leaving_line(pool.index), "looking changes nothing"
        leaves = {b: at for node in TreeSnapshot.of(pool).nodes for b, at in zip(node.blocks, node.leaves, strict=True)}
        assert [block for block, at in sorted(leaves.items(), key=lambda item: item[1] or 0) if at] == line
        assert len(line) == pool.num_cached > 3
        really = []
        while pool.index.num_blocks > len(leaves) - len(line):
            really.append(pool.index.evict())
        assert really == line, (index, policy, size)


def test_a_very_long_chain_has_a_line_too() -> None:
    """Nodes are linked one to the next; a copy that followed the links would recurse as deep as the chain is long."""
    pool = CachingPool(3000, 1, "hash")
    tokens = list(range(3000))
    pool.enroll("a")
    pool.open("a")
    pool.adopt("a", [])
    pool.grow("a", 3000)
    pool.publish("a", tokens, 3000)
    pool.release("a")
    assert leaving_line(pool.index) == list(range(2999, -1, -1))


def test_who_holds_what_and_who_shares() -> None:
    one, two, three = run_prompts(
        {"A": [1, 2, 3, 4, 5], "B": [1, 2, 3, 9], "C": [1, 2, 7]}, num_blocks=16, block_size=1, keep=["A", "B"]
    )
    assert (one.shared_with, two.shared_with, three.shared_with) == ((), ("A",), ("A", "B"))
    held = {node.tokens: (node.holders, node.lock) for node in three.tree.nodes}
    assert held == {
        (1, 2): (("A", "B", "C"), 3),
        (3,): (("A", "B"), 2),
        (4, 5): (("A",), 1),
        (9,): (("B",), 1),
        (7,): (("C",), 1),
    }
    assert [node.state for node in one.tree.nodes] == ["held"] and three.tree.num_cached == 0


@pytest.mark.parametrize("index", INDEXES)
def test_branches_that_went_are_told_apart(index: str) -> None:
    prompts = {"A": [1, 2, 3, 4], "B": [1, 2, 5, 6], "big": [9] * 6}
    tree = run_prompts(prompts, num_blocks=6, block_size=1, prefix_index=index)[-1].tree
    assert [item.block_texts for item in tree.gone] == [(" 1", " 2", " 3", " 4"), (" 5", " 6")]
    assert {item.parent for item in tree.gone} == {None}


@pytest.mark.parametrize("index", INDEXES)
def test_what_does_not_fit_says_so_and_changes_nothing(index: str) -> None:
    prompts = {"A": [1] * 10, "too long": [2] * 40, "no room": [3] * 26, "empty": [], "fits": [1] * 10 + [4]}
    runs = run_prompts(prompts, num_blocks=8, block_size=4, prefix_index=index, keep=["A"])
    refused: dict[str, PromptRun] = {run.name: run for run in runs if run.refused}
    assert list(refused) == ["too long", "no room", "empty"]
    told = [run.sentence for run in refused.values()]
    assert "40 tokens need 10 blocks of 4 tokens and the pool has 8: shorten the prompt" in told[0]
    assert "26 tokens need 7 blocks" in told[1] and "running requests hold 3 of 8: it would wait" in told[1]
    assert "empty prompt" in told[2]
    assert {run.tree for run in refused.values()} == {run.tree for run in runs[1:2]}
    assert runs[-1].hit_tokens == 8 and runs[-1].shared_with == ("A",)


def test_a_bare_index_can_be_shown() -> None:
    """As a notebook walks it: trails by hand, no pool."""
    from workbench.kv.prefix_index import Trail
    from workbench.kv.radix import RadixIndex

    index, trail = RadixIndex(2), Trail(b"space", 0)
    trail.extend([1, 2, 3, 4])
    index.publish(trail, [7, 8])
    tree = TreeSnapshot.of(index, trails={"A": trail})
    (node,) = tree.nodes
    assert (node.tokens, node.blocks, node.holders, node.leaves) == ((1, 2, 3, 4), (7, 8), ("A",), (None, None))
    assert node.block_texts == (" 1 2", " 3 4") and tree.num_blocks is None
    index.release(trail)
    assert TreeSnapshot.of(index).nodes[0].leaves == (2, 1)
    assert bytes(index.roots[b"space"].children[pack([1, 2])].tokens) == pack([1, 2, 3, 4]), "the copy took nothing"


def test_a_hash_index_without_contents_tells_digests() -> None:
    pool = CachingPool(4, 2, "hash")
    pool.enroll("A")
    pool.open("A")
    pool.adopt("A", [])
    pool.grow("A", 2)
    pool.publish("A", [1, 2, 3, 4], 4)
    digests = TreeSnapshot.of(pool).nodes
    assert [node.tokens for node in digests] == [(), ()] and all("digest " in node.block_texts[0] for node in digests)
    told = TreeSnapshot.of(pool, numbers, contents={0: [1, 2], 1: [3, 4]}).nodes
    assert [node.block_texts for node in told] == [(" 1 2",), (" 3 4",)] and told[1].parent == 0


def test_a_character_that_two_nodes_share_is_shown_whole() -> None:
    from tests.text.test_detokenizer import shared
    from workbench.lab.token_text import texts_of

    for index in INDEXES:
        prompts = {"A": shared().encode("하나"), "B": shared().encode("한나")}
        tree = run_prompts(prompts, num_blocks=16, block_size=1, prefix_index=index, texts=texts_of(shared()))[-1].tree
        told = ["".join(node.block_texts) for node in tree.nodes]
        assert any(text.endswith("하") or text.startswith("하") for text in told), told
        assert "\\x" not in "".join(told), told


def test_where_a_part_and_its_copy_do_not_fit_the_part_is_computed() -> None:
    """A pool of one block, as the engine does it: the block is given up, and nobody waits."""
    first, second = run_prompts({"a": [1, 2, 3, 4], "b": [1, 2, 3, 9]}, num_blocks=1, block_size=4, partial=True)
    assert (second.refused, second.hit_tokens, second.copied_from) == ("", 0, None)
    assert second.new_blocks == len(second.evicted) == first.new_blocks == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefix_index": "trie"}, "prefix_index='trie' is not known; choose from radix, hash"),
        ({"eviction_policy": "mru"}, "eviction_policy='mru' is not known; choose from lru, lfu, fifo"),
        ({"keep": ["b"]}, "keep='b' is none of the prompts"),
    ],
)
def test_what_is_not_known_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_prompts({"a": [1, 2]}, num_blocks=4, block_size=1, **options)
