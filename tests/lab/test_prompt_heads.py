"""Where prompts part: against a comparison by hand, against the pool, and read back from the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from random import Random

import pytest

from tests.lab.test_prefix_runs import common as by_hand
from tests.lab.test_prefix_runs import prompts_of
from tests.lab.test_svg import SVG, marked
from tests.text.test_detokenizer import shared
from workbench.errors import UsageError
from workbench.kv.radix import RadixIndex
from workbench.lab import common_heads, hit_tokens, prompt_heads_table, read_prompts, render_prompt_heads, run_prompts
from workbench.lab.prompt_heads import TEMPLATE, Span, TokenPrompt, common
from workbench.lab.prompt_lint import lint_prompts
from workbench.lab.svg.heads import MAX_BARS
from workbench.lab.table import Cell

WEATHER = {
    "one": "Hi, what is the weather like today?",
    "two": "Hi, what is the weather like now?",
    "three": "What is the weather like today?",
}
AWKWARD = {
    "html": "<b>&amp;</b> <script>",
    "lines": "one\ntwo\r\n\tthree",
    "control": "\x1b[31m\u202e",
    "한": "한글 하나",
    "하": "하나 한글",
    "emoji": "👩‍👩‍👧‍👦 and 🙂",
    "other emoji": "👩‍👩‍👧‍👧 and 🙃",
}


def numbered(prompts: dict[str, list[int]]) -> list[TokenPrompt]:
    """Prompts of bare numbers."""
    texts = {name: tuple(f" {i}" for i in ids) for name, ids in prompts.items()}
    return [
        TokenPrompt(name, tuple(ids), texts[name], (Span("prompt", "".join(texts[name]), 0, len(ids)),))
        for name, ids in prompts.items()
    ]


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("seed", range(5))
def test_heads_agree_with_a_comparison_by_hand_and_with_the_pool(size: int, seed: int) -> None:
    prompts = prompts_of(Random(seed), 20, size)
    heads = common_heads(numbered(prompts), size)
    before: list[list[int]] = []
    for head, tokens in zip(heads, prompts.values(), strict=True):
        assert head.tokens == max((by_hand(tokens, other) for other in before), default=0)
        if head.other is not None:
            assert by_hand(tokens, list(head.other.token_ids)) == head.tokens
        before.append(tokens)
    runs = run_prompts(prompts, num_blocks=4000 // size, block_size=size)
    found = hit_tokens(list(prompts.values()), size)
    assert found == [run.hit_tokens for run in runs] and any(found)
    # What one of the earlier prompts has is what the tree has.
    assert [head.hit_tokens for head in heads] == found


def test_a_mutant_of_the_tree_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail: a tree that finds a block less does not pass it."""
    match = RadixIndex.match
    monkeypatch.setattr(RadixIndex, "match", lambda self, trail, limit: match(self, trail, limit)[:-1])
    with pytest.raises(AssertionError):
        test_heads_agree_with_a_comparison_by_hand_and_with_the_pool(4, 0)


def test_the_one_before_is_another_question() -> None:
    heads = common_heads(numbered({"a": [1, 2, 3, 4], "b": [9, 9], "c": [1, 2, 3, 5]}), 1, previous=True)
    assert [(head.other and head.other.name, head.tokens) for head in heads] == [(None, 0), ("a", 0), ("b", 0)]
    assert common([1, 2], [1, 2, 3]) == 2 and common([], [1]) == 0 and common([1, 2], [2, 1]) == 0


def test_the_weather() -> None:
    """Claim P4: seven tokens alike raw, none of them a whole block of 16; the template's head is alike for all."""
    raw, chat = (read_prompts(shared(), WEATHER, template=template) for template in (False, True))
    assert [head.tokens for head in common_heads(raw, 1)] == [0, 7, 0]
    assert [head.hit_tokens for head in common_heads(raw, 1)] == [0, 7, 0]
    assert [head.hit_tokens for head in common_heads(raw, 16)] == [0, 0, 0]
    third = common_heads(chat, 16)[2]
    assert (third.tokens, third.hit_tokens, third.part) == (24, 16, "prompt")
    rows = prompt_heads_table(raw, 1).rows
    assert rows[1][-1] == "“␣what is the weather like¦␣now?” | “␣today?”"
    assert rows[2][-1] == "“¦What is the weather like” | “Hi, what is the”"


PARTED = {
    "a": [("system", "You are helpful."), ("tools", "[search]"), ("document", "Cats purr."), ("user", "user")],
    "b": {"system": "You are helpful.", "document": "한국어 문서", "user": "왜?"},
    "c": [("user", "Hi"), ("assistant", "Hello! system"), ("user", "Why?")],
}


@pytest.mark.parametrize("template", [False, True])
def test_every_token_lies_in_one_part_and_parts_hold_their_texts(template: bool) -> None:
    for prompt in read_prompts(shared(), PARTED, template=template):
        at = 0
        for span in prompt.spans:
            assert span.start == at <= span.stop
            at = span.stop
        assert at == len(prompt.token_ids) == len(prompt.texts)
        whole = "".join(span.text for span in prompt.spans)
        assert shared().encode(whole) == list(prompt.token_ids) and prompt.raw.decode() == whole
        assert prompt.part_at(at) == "end" and prompt.part_at(0) == prompt.spans[0].name
        given = dict(PARTED)[prompt.name]
        items = list(given.items()) if isinstance(given, dict) else given
        mine = [span for span in prompt.spans if span.name != TEMPLATE]
        assert [(span.name, span.text.removesuffix("\n\n")) for span in mine] == items
        assert bool([span for span in prompt.spans if span.name == TEMPLATE]) == template
        for token in (0, 3, at - 1, at):
            assert prompt.before(token) + prompt.rest(token) == whole


def test_the_template_is_the_models_own() -> None:
    prompt = read_prompts(shared(), {"c": PARTED["c"]}, template=True)[0]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! system"},
        {"role": "user", "content": "Why?"},
    ]
    assert list(prompt.token_ids) == shared().apply_chat_template(messages)
    joined = read_prompts(shared(), {"a": PARTED["a"]}, template=True)[0]
    assert list(joined.token_ids) == shared().apply_chat_template(
        [
            {"role": "system", "content": "You are helpful.\n\n[search]"},
            {"role": "user", "content": "Cats purr.\n\nuser"},
        ]
    )


def test_a_token_over_two_parts_is_a_seam() -> None:
    """``to`` and ``day`` in a row are one token."""
    prompt = read_prompts(shared(), {"a": [("system", "to"), ("user", "day")]}, join="")[0]
    assert prompt.texts == ("today",) and prompt.seams == {0}
    assert [(span.name, span.start, span.stop) for span in prompt.spans] == [("system", 0, 1), ("user", 1, 1)]
    assert read_prompts(shared(), {"a": [("system", "to"), ("user", "day")]})[0].seams == frozenset()


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("template", [False, True])
def test_the_picture_shows_every_head(size: int, template: bool) -> None:
    for given in (WEATHER, PARTED, AWKWARD):
        prompts = read_prompts(shared(), given, template=template)
        svg = render_prompt_heads(prompts, size)
        heads = {head.prompt.name: head for head in common_heads(prompts, size)}
        drawn = {group["data-prompt"]: group for group in marked(svg, "prompt")}
        assert set(drawn) == set(heads)
        for name, head in heads.items():
            group = drawn[name]
            assert int(group["data-equal"]) == head.tokens and int(group["data-found"]) == head.hit_tokens
            assert int(group["data-tokens"]) == len(head.prompt.token_ids)
        assert "\n" not in svg and "<script" not in svg and "\x1b" not in svg
        rows = prompt_heads_table(prompts, size).rows
        for row, head in zip(rows[1:], list(heads.values())[1:], strict=True):
            assert row[3] == head.tokens and isinstance(row[4], Cell) and row[4].text == str(head.hit_tokens)
            assert row[5] == head.hit_tokens // size


def test_bars_are_to_scale() -> None:
    prompts = numbered({"a": list(range(40)), "b": [*range(25), 99, 98]})
    for group in ET.fromstring(render_prompt_heads(prompts, 8)).iter(f"{SVG}g"):
        if group.attrib.get("data-prompt") == "b":
            widths = [float(rect.attrib["width"]) for rect in group.iter(f"{SVG}rect")]
            assert len(widths) == 3
            unit = widths[0] / 24
            assert widths[1] == pytest.approx(unit, abs=0.02) and widths[2] == pytest.approx(2 * unit, abs=0.02)
            return
    raise AssertionError("b is not drawn")


def test_a_character_that_the_parting_cuts_is_not_lost() -> None:
    """Both syllables begin with the same byte, so the prompts part within a character."""
    prompts = read_prompts(shared(), {"하": AWKWARD["하"], "한": AWKWARD["한"]})
    head = common_heads(prompts, 1)[1]
    assert 0 < head.tokens < 3, "equal bytes, no equal character"
    assert prompts[1].before(head.tokens) == "" and prompts[1].rest(0).startswith("한")
    table = prompt_heads_table(prompts, 1)
    assert "한" in str(table.rows[1][-1]) and "하" in str(table.rows[1][-1])
    render_prompt_heads(prompts, 1)


def test_of_many_prompts_the_rest_is_counted() -> None:
    many = numbered({f"p{number}": [1, 2, number] for number in range(MAX_BARS + 5)})
    svg = render_prompt_heads(many, 1)
    assert len(marked(svg, "prompt")) == MAX_BARS and "5 more prompts are not drawn" in svg
    long = numbered({"a": list(range(6000)), "b": list(range(5990))})
    assert len(render_prompt_heads(long, 1)) < 60_000


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: read_prompts(shared(), {}), "no prompts"),
        (lambda: read_prompts(shared(), {"a": ""}), "'a' is empty"),
        (lambda: read_prompts(shared(), {"a": [("system", ""), ("user", "")]}), "'a' is empty"),
        (lambda: read_prompts(shared(), {"a": "\x00" if not shared().encode("\x00") else ""}), "no token|empty"),
        (lambda: common_heads(numbered({"a": [1]}), 0), "block_size=0"),
        (lambda: read_prompts(shared(), ["Hi", "Hi you"]), r"prompts=\['Hi', 'Hi you'\] must be a mapping from names"),
        (lambda: lint_prompts(shared(), ["Hi", "Hi you"]), r"prompts=\['Hi', 'Hi you'\] must be a mapping from names"),
        (lambda: lint_prompts(shared(), {"a": None}), "prompt 'a' is None: a text was expected"),
        (lambda: lint_prompts(shared(), {"a": ["one", "two"]}), r"prompt 'a' is \['one', 'two'\]: a text was expected"),
        (lambda: lint_prompts(shared(), {"a": {"user": 3}}), "prompt 'a' is {'user': 3}: a text was expected"),
    ],
)
def test_what_cannot_be_read_is_refused(make, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()
