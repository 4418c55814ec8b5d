"""Right answers for the exercises of notebook 15, by the engine's radix tree, and the cases they are checked with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations
from random import Random
from typing import Any
from zlib import crc32

from workbench.lab.exercise_cases import Case, Difference, fixed, short
from workbench.lab.help_desk import KINDS, TOPICS, Part, ask, asks, part
from workbench.lab.prompt_heads import hit_tokens

Assembler = Callable[[Sequence[Part]], list[str]]
KEPT = 0.99
"""What part of the best layout's hits is asked for: another good one may lose a word somewhere."""


# met-again


def last_hit(seen: list[list[int]], prompt: list[int], block_size: int) -> int:
    return hit_tokens([*seen, prompt], block_size)[-1]


def met_cases() -> list[Case]:
    draw = Random("met-again")
    cases = []

    def add(family: str, name: str, seen: list[list[int]], prompt: list[int], size: int, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(seen, prompt, size), last_hit, help=help_))

    for number in range(12):
        base = [draw.randrange(50_000) for _ in range(draw.randint(9, 40))]
        cut = draw.randint(1, len(base))
        seen = [base[: draw.randint(1, len(base))] + [1, 2, 3][: draw.randint(0, 3)] for _ in range(3)]
        prompt = base[:cut] + [draw.randrange(50_000) for _ in range(draw.randint(0, 9))]
        add("random", f"{number}", seen, prompt, draw.choice([1, 2, 4, 16]))
    ten = list(range(100, 110))
    add("empty", "nothing was seen", [], ten, 2, "then there is nothing to find")
    add("single", "a prompt of one token", [[7, 8]], [7], 1, "its last token is its only one")
    add("edge", "the same prompt, whole blocks", [ten], ten, 5, "the last token is always computed")
    add("edge", "the same prompt, one token over", [[*ten, 9]], [*ten, 9], 5, "now both blocks come before the last")
    add("edge", "a block of the seen prompt is not full", [ten[:7]], ten, 4, "only full blocks are kept")
    add("edge", "they part at the seam of blocks", [[*ten[:8], 1, 2]], ten, 4)
    add("edge", "they part one token before it", [[*ten[:7], 1, 2, 3]], ten, 4)
    add("order", "the longest is neither first nor last", [[*ten[:3], 1, 5], ten[:9], [*ten[:5], 0, 2]], ten, 1)
    add("order", "equal again after the first difference", [[1, *ten[1:]]], ten, 1, "nothing counts after it")
    return cases


# assemble


def words(texts: Sequence[str]) -> list[int]:
    """A prompt for the check: its words stand for tokens."""
    return [crc32(word.encode()) for word in " ".join(texts).split()]


def laid_out(kinds: Sequence[str], parts: Sequence[Part]) -> list[str]:
    """Each text once, kind after kind, and within a kind by key."""
    texts: list[str] = []
    for kind in kinds:
        of_kind = {one["key"]: one["text"] for one in parts if one["kind"] == kind}
        texts += [of_kind[key] for key in sorted(of_kind)]
    return texts


def hits(prompts: Sequence[Sequence[str]]) -> int:
    """Tokens, here words, that are met again when these prompts come one after the other."""
    return sum(hit_tokens([words(texts) for texts in prompts], 1))


def by_trying(parts: Sequence[Part]) -> list[str]:
    """A right answer for one prompt: the order that does best over a stream, found by trying all."""
    return laid_out(_best_order(), parts)


@cache
def _best_order() -> tuple[str, ...]:
    stream = asks(40, 5)
    orders = [(*order, "question") for order in permutations(KINDS[:-1])]
    return max(orders, key=lambda order: hits([laid_out(order, parts) for parts in stream]))


def best_prompts(stream: Sequence[Sequence[Part]]) -> list[list[str]]:
    return [by_trying(parts) for parts in stream]


def each(function: Assembler, stream: Sequence[Sequence[Part]]) -> list[Any]:
    return [function(parts) for parts in stream]


def judged(best: list[list[str]], got: Any, stream: Sequence[Sequence[Part]]) -> Difference | None:
    """Each prompt must hold each text once and end with the question; together they must hit nearly as ``best`` do."""
    for number, (right, texts, parts) in enumerate(zip(best, got, stream, strict=True)):
        if wrong := _rules(right, texts, parts):
            return Difference(f"[{number}]", short(right), short(texts), wrong)
    most, reached = hits(best), hits(got)
    if reached < KEPT * most:
        told = f"{reached} words of these {len(best)} prompts are met again: what changes most often stands too early"
        return Difference("", f"at least {KEPT:.0%} of {most} words met again", f"{reached}", told)
    return None


def _rules(right: list[str], texts: Any, parts: Sequence[Part]) -> str:
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        return "a list of texts was expected"
    if lost := [text for text in right if text not in texts]:
        return f"lost: {short(lost[0], 80)}"
    if more := [text for text in texts if text not in right or texts.count(text) > 1]:
        return f"twice, or no part's text: {short(more[0], 80)}"
    if texts[-1] != right[-1]:
        return "the question must stand last"
    for kind in ("document", "tool"):
        keys = [one["key"] for text in texts for one in parts if one["kind"] == kind and one["text"] == text]
        if keys != sorted(keys):
            return f"{kind}s must stand in the order of their keys"
    return ""


def assemble_cases() -> list[Case]:
    draw = Random("assemble")
    cases = []

    def add(family: str, name: str, stream: list[list[Part]], help_: str = "") -> None:
        cases.append(Case(family, name, fixed(stream), best_prompts, help=help_, call=each, judge=judged))

    everything = ask(0, 1, 555, tools=("report_lost", "book_car"), twice=(7, 1))
    add("single", "one prompt with everything", [everything], "each text once, and the question last")
    add("single", "no tools", [ask(4, 2, 700)])
    bare = [one for one in everything if one["kind"] in ("system", "question")]
    add("empty", "nothing was found", [bare], "there may be no documents")
    for seed in (1, 2):
        add("random", f"stream {seed}", asks(24, seed), "what do most of these prompts have in common?")
    rush = [ask(0, user, 600 + user, tools=("next_boat",)) for user in (0, 1, 2, 3, 1)]
    add("users", "one question of many people", rush, "the documents are the same, the people are not")
    mixed = [ask(draw.choice((0, 3)), 0, 600 + number, twice=(5,)) for number in range(6)]
    add("orders", "the same documents in two orders", mixed, "equal sets must become equal texts")
    wide = [part("document", f"Document {key}: {key} boats.", key) for key in (10, 9, 111)]
    add("orders", "numbers of several digits", [[*wide, bare[-1]]], "9 is less than 10, as numbers go")
    times = [
        ask(topic % len(TOPICS), 0, minute) for topic, minute in zip((0, 1, 0, 1), (600, 600, 601, 602), strict=True)
    ]
    add("times", "one person, minute after minute", times, "a time is another one in nearly every prompt")
    return cases
