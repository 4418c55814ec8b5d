"""Notebook 14: where a request leaves a node of the radix tree, and which cached block goes first."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import Any

from workbench.kv.eviction import Node
from workbench.kv.prefix_index import TOKEN_BYTES, PrefixIndex
from workbench.kv.radix import RadixIndex
from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb14_cases as cases

# The solutions. The text of each function, without what stands in its gap, is the skeleton in the notebook.


def cut(tokens: list[int], node: list[int], block_size: int) -> tuple[list[int], list[int]]:
    """A node's tokens in two parts: the whole blocks that a request shares with it, and the rest.

    tokens: the request's, from the place where the node begins. node: the node's, whole blocks. Either part may be
    empty; one after the other they are the node.
    """
    # your turn: how far are both equal, and where did the last whole block end?
    common = 0
    while common < min(len(tokens), len(node)) and tokens[common] == node[common]:
        common += 1
    end = common - common % block_size
    return node[:end], node[end:]
    # end


def victim(nodes: list[dict]) -> int | None:
    """Place in the list of the node that gives up a block next; None if none may.

    nodes: all of an index, each with "holders" (requests that hold it now), "children" (nodes that go on from it),
    "uses" (how often a request took it over from another) and "last_use" (the later, the larger; no two alike).
    """
    # your turn: who may go at all, and who of them goes first?
    first, place = None, None
    for number, node in enumerate(nodes):
        if node["holders"] or node["children"]:
            continue
        rank = (node["uses"] > 0, node["last_use"])
        if first is None or rank < first:
            first, place = rank, number
    return place
    # end


def unpacked(tokens: bytes | bytearray) -> list[int]:
    """The inverse of `workbench.kv.prefix_index.pack`."""
    numbers = array("I", bytes(tokens))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _as_common(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `RadixIndex._common`: matching stops, and a node is split, where the function cuts it."""

    def common(self: RadixIndex, tokens: bytearray, at: int, node: Node, most: int) -> int:
        width = self.block_size * TOKEN_BYTES
        front, _ = function(unpacked(tokens[at * width : (at + most) * width]), unpacked(node.tokens), self.block_size)
        return len(front) // self.block_size

    return common


def _as_evict(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `PrefixIndex.evict`, with either index and whatever the policy: the function says which node gives up."""

    def evict(self: PrefixIndex) -> Any:
        nodes = list(self.nodes())
        place = function(
            [
                {"holders": node.lock, "children": node.num_children, "uses": node.uses, "last_use": node.released}
                for node in nodes
            ]
        )
        if place is None:
            raise LookupError("nothing can be given up: the function says so")
        order: Any = self.order
        order.victim = lambda: nodes[place]
        try:
            return original(self)
        finally:
            del order.victim

    return evict


def _node(holders: int, children: int, uses: int, last_use: int) -> dict[str, int]:
    return {"holders": holders, "children": children, "uses": uses, "last_use": last_use}


_TREE = [_node(1, 1, 3, 2), _node(1, 0, 0, 1), _node(0, 0, 2, 4), _node(0, 0, 0, 6), _node(0, 0, 0, 5)]
_USED, _HELD = [*_TREE[:3], _node(0, 0, 1, 7)], _TREE[:2]

EXERCISES = (
    Exercise(
        notebook="14",
        id="radix-cut",
        title="Where a node is cut",
        difficulty=2,
        minutes=15,
        statement="A node of the radix tree holds the tokens of one or more whole blocks. A request comes to it and "
        "goes along with it for a while. Return the node's tokens in two parts: those of the whole blocks that the "
        "request shares, and the rest. The tree shares the first part and, if both have tokens, cuts the node there. "
        "A block is shared only if all of its tokens are equal; the request may end within the node, or go beyond it.",
        function=cut,
        reference=cases.cut_by_blocks,
        examples=(
            Example(([5, 6, 7, 8, 9, 1], [5, 6, 7, 8, 9, 2, 3, 4], 4), ([5, 6, 7, 8], [9, 2, 3, 4]), "five are equal"),
            Example(([5, 6, 7, 8, 9, 1], [5, 6, 7, 8, 9, 2, 3, 4], 1), ([5, 6, 7, 8, 9], [2, 3, 4]), "blocks of one"),
            Example(([5, 6, 7, 8, 9], [5, 6, 7, 8], 2), ([5, 6, 7, 8], []), "the request goes beyond the node"),
            Example(([5, 0, 7, 8], [5, 6, 7, 8], 2), ([], [5, 6, 7, 8]), "what is equal later does not count"),
        ),
        cases=cases.cut_cases,
        hints=(
            "Which is the first token that is not the same, and in which block does it lie?",
            "The first part is a whole number of blocks, equal to the beginning of the request, and no longer one is. "
            "Both parts together are the node.",
            "Count equal tokens from the first on, and stop at the first difference or where one of the two ends. Take "
            "off what is left over when you divide the count by the block size. Cut the node's list there.",
        ),
        mutants=(
            Mutant("cut within a block", "common - common % block_size", "common"),
            Mutant("a block that is half equal", "common - common % block_size", "common + -common % block_size"),
            Mutant(
                "the last block always left",
                "common - common % block_size",
                "max(common - 1, 0) // block_size * block_size",
            ),
            Mutant("as if the request went on", "min(len(tokens), len(node))", "len(node)"),
            Mutant("as if the node went on", "min(len(tokens), len(node))", "len(tokens)"),
            Mutant("the request's rest", "node[end:]", "tokens[end:]"),
            Mutant("one token looked at", "while common", "if common"),
            Mutant(
                "equal anywhere",
                " and tokens[common] == node[common]:\n        common += 1",
                ":\n        common += 1\n    common = sum(a == b for a, b in zip(tokens, node))",
            ),
        ),
        swap=Swap("workbench.kv.radix", "RadixIndex", "_common", _as_common),
    ),
    Exercise(
        notebook="14",
        id="victim",
        title="Who leaves the cache",
        difficulty=2,
        minutes=20,
        statement="Room is needed, and one cached node must give up a block. Whoever is held by a request stays, and "
        "so does whoever has children: what comes after a missing block can never be found again. Of the others, those "
        "that no second request has ever used (`uses` is 0) go first, the longest unused of them; only when there "
        "are none, those that were used again, and again the longest unused, no matter how often it was used. So one "
        "long scan cannot push out the heads that many share. Return the place in the list, or `None` if nobody may "
        "go.",
        function=victim,
        reference=cases.eliminated,
        given={"tree": _TREE, "used": _USED, "held": _HELD},
        examples=(
            Example((_TREE,), 4, "0 and 1 are held, 2 was used again, 4 is longer unused than 3"),
            Example((_USED,), 2, "all that may go were used again; 3 less often, but 2 is longer unused"),
            Example((_HELD,), None, "all are held"),
        ),
        cases=cases.victim_cases,
        hints=(
            "Which two things make a block untouchable, and what do you compare among the rest?",
            "The answer has no holders and no children. No other such node is unused while it was used, and none of "
            "its own kind has a smaller last_use.",
            "Leave out every node with holders or children. Rank the rest by a pair: first whether it was used at all, "
            "then its last use. The least pair goes; no pair, no answer.",
        ),
        mutants=(
            Mutant("the held may go", 'node["holders"] or node["children"]', 'node["children"]'),
            Mutant("heads before their tails", 'node["holders"] or node["children"]', 'node["holders"]'),
            Mutant("plain LRU", '(node["uses"] > 0, node["last_use"])', '(True, node["last_use"])'),
            Mutant("plain LFU", 'node["uses"] > 0', 'node["uses"]'),
            Mutant("the used first", 'node["uses"] > 0', 'node["uses"] == 0'),
            Mutant("once is not enough", 'node["uses"] > 0', 'node["uses"] > 1'),
            Mutant("the used never", 'or node["children"]', 'or node["children"] or node["uses"]'),
            Mutant("the newest first", "rank < first", "rank > first"),
            Mutant("always somebody", "first, place = None, None", "first, place = None, 0"),
        ),
        swap=Swap("workbench.kv.prefix_index", "PrefixIndex", "evict", _as_evict),
    ),
)
