"""Right answers for the exercises of notebook 14, found in another way, and the cases they are checked with."""

from __future__ import annotations

from random import Random

from workbench.lab.exercise_cases import Case, fixed

Nodes = list[dict[str, int]]


# radix-cut


def cut_by_blocks(tokens: list[int], node: list[int], block_size: int) -> tuple[list[int], list[int]]:
    """By trying fronts of whole blocks, the longest first."""
    for end in range(len(node), -1, -block_size):
        if tokens[:end] == node[:end]:
            return node[:end], node[end:]
    raise AssertionError("nothing at all is always equal")


def cut_cases() -> list[Case]:
    draw = Random("radix-cut")
    cases = []

    def add(family: str, name: str, tokens: list[int], node: list[int], size: int, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(tokens, node, size), cut_by_blocks, help=help_))

    def tokens(count: int) -> list[int]:
        return [1000 + number if number % 2 else draw.randrange(50) for number in range(count)]

    for number in range(10):
        size = draw.choice([1, 2, 3, 4, 16])
        node = tokens(size * draw.randint(1, 5))
        parts = draw.randint(0, len(node))
        other = node[:parts] + [-1] * (parts < len(node)) + node[parts + 1 :] + tokens(draw.randint(0, 6))
        add("random", f"{number}, they part at {parts}", other, node, size, "they part once, and it stays at that")
    node = tokens(12)
    for size in (1, 4, 12):
        add("edge", f"they part at a block's first token, {size}", [*node[:8], -1, *node[9:]], node, size)
        add("edge", f"they part at a block's last token, {size}", [*node[:7], -1, *node[8:]], node, size)
        add("edge", f"the whole node, {size}", list(node), node, size, "nothing is left to cut off")
        add("edge", f"beyond the node, {size}", [*node, 7, 8, 9], node, size)
        add("ragged", f"the request ends within the node, {size}", node[:7], node, size, "the request has no more")
        add("ragged", f"it ends where a block ends, {size}", node[:8], node, size)
        add("none", f"the first token differs, {size}", [-1, *node[1:]], node, size, "equal tokens later do not count")
    add("none", "a request without tokens", [], node, 4, "it may have ended just before the node")
    add("single", "one block of one token", [3], [3], 1)
    add("single", "one block, half of it equal", [3, 4, 0, 6], [3, 4, 5, 6], 4, "half a block is no block")
    return cases


# victim


def eliminated(nodes: Nodes) -> int | None:
    """By striking out, one pair after the other, whoever another one goes before."""
    left = [place for place, node in enumerate(nodes) if node["holders"] + node["children"] == 0]
    while len(left) > 1:
        a, b = left[:2]
        one, other = nodes[a], nodes[b]
        if (one["uses"] == 0) == (other["uses"] == 0):
            left.remove(a if one["last_use"] > other["last_use"] else b)
        else:
            left.remove(b if one["uses"] == 0 else a)
    return left[0] if left else None


def victim_cases() -> list[Case]:
    draw = Random("victim")
    cases = []

    def add(family: str, name: str, nodes: Nodes, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(nodes), eliminated, help=help_))

    def node(holders: int, children: int, uses: int, last_use: int) -> dict[str, int]:
        return {"holders": holders, "children": children, "uses": uses, "last_use": last_use}

    for number in range(10):
        count = draw.randint(2, 12)
        last = draw.sample(range(100), count)
        drawn = [
            node(draw.choice([0, 0, 1, 2]), draw.choice([0, 0, 1]), draw.choice([0, 0, 1, 2, 5]), use) for use in last
        ]
        add("random", str(number), drawn)
    add("order", "the longest unused stands last", [node(0, 0, 0, 9), node(0, 0, 0, 7), node(0, 0, 0, 3)])
    add("order", "the longest unused stands first", [node(0, 0, 0, 2), node(0, 0, 0, 7), node(0, 0, 0, 3)])
    add("order", "the oldest was used once", [node(0, 0, 1, 1), node(0, 0, 0, 9)], "one use is enough to be kept")
    used = [node(0, 0, 7, 2), node(0, 0, 1, 4), node(0, 0, 3, 3)]
    add("order", "all were used, the oldest most often", used, "used is used: how often does not matter")
    add("held", "the oldest leaf is held", [node(1, 0, 0, 1), node(0, 0, 0, 5)], "somebody reads it")
    add("held", "the oldest has a child", [node(0, 1, 0, 1), node(0, 0, 0, 5)], "its child would be lost")
    add("held", "only a used one is free", [node(2, 0, 0, 1), node(0, 3, 0, 2), node(0, 0, 4, 3)])
    add("none", "an empty index", [], "there may be no node at all")
    add("none", "everybody is held or has children", [node(1, 0, 0, 1), node(0, 2, 0, 2)], "None says it")
    add("single", "one node", [node(0, 0, 0, 1)])
    add("single", "one node, used", [node(0, 0, 2, 1)])
    return cases
