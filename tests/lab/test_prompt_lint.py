"""The linter: each rule on prompts that have the fault and on prompts that do not; suggestions counted by the pool."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.text.test_detokenizer import shared
from workbench.errors import UsageError
from workbench.lab import drive, help_desk, lint_prompts, prompt_linter, read_prompts, run_prompts, show, suggest_order
from workbench.lab import prompt_lint as lint_module
from workbench.lab.exercises.nb15_cases import best_prompts, judged, laid_out
from workbench.lab.prompt_checks import Finding, findings
from workbench.lab.prompt_lint import PromptReport

SYSTEM = "You are a careful assistant of the harbour office. Answer in two sentences and name the document you used."
DOCUMENTS = [
    "Document 1: Ferries leave every forty minutes from pier two, except on Sundays.",
    "Document 2: Bicycles travel free of charge on all ferries before nine in the morning.",
    "Document 3: The harbour museum opens at ten and closes at five.",
    "Document 4: Dogs must be kept on a lead on deck.",
]
QUESTIONS = ["When does the ferry leave?", "May I bring a dog?", "Is it open on Monday?"]


def rag(*orders: tuple[int, ...]) -> dict[str, list[tuple[str, str]]]:
    """Prompts of the system text, documents in these orders, and a question each."""
    return {
        f"p{at}": [("system", SYSTEM), *(("document", DOCUMENTS[i]) for i in order), ("user", QUESTIONS[at % 3])]
        for at, order in enumerate(orders)
    }


def with_first(part: str, *texts: str) -> dict[str, list[tuple[str, str]]]:
    return {f"p{at}": [(part, text), ("system", SYSTEM), ("user", QUESTIONS[at % 3])] for at, text in enumerate(texts)}


def lint(prompts: Any, **options: Any) -> PromptReport:
    return lint_prompts(shared(), prompts, **options)


def found(prompts: Any, kind: str, **options: Any) -> list[Finding]:
    return [finding for finding in lint(prompts, **options).findings if finding.kind == kind]


CHANGING = {
    "a date and time": ("It is 2026-11-30T09:15:02Z now.", "It is 2026-11-30T09:16:40Z now."),
    "a date": ("Today: 2026-11-30", "Today: 2026-12-01"),
    "a time of day": ("The time is 9:15 am.", "The time is 9:45 am."),
    "a UUID": ("id 123e4567-e89b-12d3-a456-426614174000", "id 123e4567-e89b-12d3-a456-42661417400f"),
    "seconds since 1970": ("sent 1764493200", "sent 1764493261"),
    "a hexadecimal id": ("trace 4bf92f3577b34da6", "trace 4bf92f3577b34da7"),
    "a counter": ("Request number: 17", "Request number: 18"),
}
WORDY_DATES = [("Today is Monday, November 30, 2026.", "Today is Monday, November 23, 2026."),
               ("오늘은 2026년 11월 30일입니다.", "오늘은 2026년 11월 29일입니다.")]  # fmt: skip


@pytest.mark.parametrize("kind", CHANGING)
@pytest.mark.parametrize("template", [False, True])
def test_changing_texts_are_named_and_cost_what_stands_behind(kind: str, template: bool) -> None:
    prompts = with_first("note", *CHANGING[kind])
    (finding,) = found(prompts, "changing text", template=template)
    assert finding.words.startswith(kind) and finding.part == "note" and finding.prompts == ("p1",)
    system = len(shared().encode(SYSTEM))
    assert system <= finding.tokens <= system + 2
    here, there = (quoted.partition("”")[0] for quoted in finding.words.split("“")[2:])
    assert here in CHANGING[kind][1] and there in CHANGING[kind][0] and here != there
    if not template:
        suggested = lint(prompts).suggested
        assert suggested is not None and suggested.order == "system, note, user"


@pytest.mark.parametrize("texts", WORDY_DATES)
def test_dates_in_words(texts: tuple[str, str]) -> None:
    (finding,) = found(with_first("note", *texts), "changing text")
    assert finding.words.startswith("a date")


@pytest.mark.parametrize(
    "texts",
    [
        ("Today: 2026-11-30", "Today: 2026-11-30"),  # the same in both
        ("Today: 2026-11-30, sunny", "Today: 2026-11-30, rainy"),  # they part behind it
        ("In 1999 we had 3 ferries", "In 2001 we had 4 ferries"),
        ("cafe decade", "cafe facade"),
    ],
)
def test_what_does_not_part_them_is_no_finding(texts: tuple[str, str]) -> None:
    assert found(with_first("note", *texts), "changing text") == []


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        ("Document 1: Ferries leave from pier two.", "Document1: Ferries leave from pier two.", "format"),
        ("Answer politely, in two sentences.", "Answer politely in two sentences.", "format"),
        ("Answer politely in two sentences.", "answer politely in two sentences.", "format"),
        ("Documents follow below, read all.", "Document follow below, read all.", "spelling"),
        ("The colour of the ferry is blue.", "The color of the ferry is blue.", "spelling"),
        ("Ferries leave from pier two.", "Museums close at five o'clock.", ""),
    ],
)
def test_equal_but_for_format_or_a_letter(one: str, other: str, kind: str) -> None:
    prompts = {name: [("rules", text), ("user", "Go on.")] for name, text in (("a", one), ("b", other))}
    kinds = {finding.kind for finding in lint(prompts).findings} & {"format", "spelling", "changing text"}
    assert kinds == ({kind} if kind else set())
    if kind:
        (finding,) = found(prompts, kind)
        assert finding.part == "rules" and finding.prompts == ("b",)


def test_equal_parts_behind_what_differs() -> None:
    prompts = {f"p{at}": [("user", text), ("system", SYSTEM)] for at, text in enumerate(QUESTIONS)}
    (finding,) = found(prompts, "parts")
    system = len(shared().encode(SYSTEM))
    assert finding.prompts == ("p1", "p2") and finding.tokens == 2 * system and "“system”" in finding.words
    assert found(rag((0, 1), (0, 1)), "parts") == []
    same = {name: [("document", text), ("user", "Why?")] for name, text in zip("ab", DOCUMENTS, strict=False)}
    assert found(same, "parts") == [], "a question that is the same belongs at the end all the same"
    assert found(same, "parts", last=()) != []


def test_the_same_parts_in_another_order() -> None:
    (finding,) = found(rag((0, 1, 3), (3, 0, 1)), "order")
    assert "in another order than in p0" in finding.words and finding.part == "“document”"
    assert found(rag((0, 1, 3), (0, 1, 2)), "order") == [] == found(rag((0, 1), (0, 1)), "order")


def test_what_stands_twice() -> None:
    (finding,) = found(rag((0, 1, 0)), "duplicate")
    assert finding.tokens == pytest.approx(len(shared().encode(DOCUMENTS[0])), abs=2)
    paragraph = {"a": f"{DOCUMENTS[0]}\n\nand\n\n{DOCUMENTS[0]}"}
    assert len(found(paragraph, "duplicate")) == 1
    assert found(rag((0, 1, 2)), "duplicate") == [] == found({"a": "yes\n\nyes"}, "duplicate")


def test_template_seam_and_no_whole_block() -> None:
    mixed = {"a": [("system", SYSTEM), ("user", "Hi")], "b": [("user", "Hi, you there in the harbour")]}
    assert len(found(mixed, "template", template=True)) == 1 and found(mixed, "template") == []
    talk = {"a": [("user", "Hi")], "b": [("user", "Hi"), ("assistant", "Hello"), ("user", "Why?")]}
    assert lint(talk, template=True).findings == [], "this template writes a talk as it wrote its beginning"
    assert found(mixed, "no whole block", template=True)[0].tokens < 16
    assert found(mixed, "no whole block", template=True, block_size=1) == []
    seam = {"a": [("system", "Go to"), ("user", "day")], "b": [("system", "Go to"), ("user", " him")]}
    (finding,) = found(seam, "seam", join="", block_size=1)
    assert finding.part == "system"
    assert found(seam, "seam") == []


def test_words_of_a_merged_finding_say_of_whom_they_are_true() -> None:
    (finding,) = found(rag((0, 1, 0), (2, 1, 2), (0, 3, 0)), "duplicate")
    assert finding.prompts == ("p0", "p1", "p2")
    assert finding.words.startswith("in p0, p2: “Document 1") and "Document 3" not in finding.words
    assert finding.words.endswith("; likewise, with other texts or counts, in p1")
    (same,) = found(rag((0, 1, 0), (0, 3, 0)), "duplicate")
    assert same.words.startswith("“Document 1") and same.words.endswith("in “document”"), "one text, true of both"
    (many,) = found(rag((0, 1, 0), *[(2, 1, 2)] * 5), "duplicate")
    assert many.words.endswith("in the other 5") and len(many.prompts) == 6
    mixed = with_first("note", CHANGING["a UUID"][0], CHANGING["a UUID"][1], *CHANGING["a date"])
    prompts = {at: finding.prompts for at, finding in enumerate(found(mixed, "changing text"))}
    assert sorted(prompts.values()) == [("p1",), ("p3",)], "a date is not told with the words of a UUID"


def desk(count: int, seed: int = 0) -> dict[str, list[tuple[str, str]]]:
    """Prompts of the help desk as they are come by."""
    stream = help_desk.asks(count, seed)
    return {f"{at + 1}": [(one["kind"], one["text"]) for one in parts] for at, parts in enumerate(stream)}


def test_no_whole_block_is_judged_by_the_longest_head_of_all_before() -> None:
    """Prompt 4 is most like 3, with which it shares no block, and still the cache has one of 1."""
    report = lint(desk(4), last=("question",))
    assert report.given.hits == [0, 0, 0, 16]
    (finding,) = [item for item in report.findings if item.kind == "no whole block"]
    assert finding.prompts == ("2", "3") and finding.tokens == 15 + 14
    assert finding.words.startswith("in 2: no more than the first 15 tokens")


def test_over_a_stream_in_which_people_come_back_the_suggestion_solves_the_exercise() -> None:
    for seed in range(3):
        stream = help_desk.asks(12, seed)
        suggested = lint(desk(12, seed), last=("question",)).suggested
        assert suggested is not None and suggested.order == "tool, system, document, user, time, question"
        laid = [laid_out(suggested.order.split(", "), parts) for parts in stream]
        assert judged(best_prompts(stream), laid, stream) is None


def test_the_table_says_that_tokens_do_not_add_up() -> None:
    table = lint(rag((0, 1, 0), (2, 1, 2))).table()
    assert "do not add up" in table.caption


def test_clean_prompts_have_no_finding() -> None:
    report = lint(rag((0, 1, 2), (0, 1, 2), (0, 1, 2)))
    assert report.findings == [] and report.suggested is None
    assert "nothing was found" in report.table().caption and "no less to compute" in report.layouts().caption


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("template", [False, True])
def test_layouts_are_counted_by_the_pool(size: int, template: bool) -> None:
    draw = Random(size)
    for _ in range(6):
        orders = [tuple(draw.sample(range(4), 3)) for _ in range(6)]
        report = lint(rag(*orders), block_size=size, template=template)
        for layout in (report.given, report.suggested):
            if layout is None:
                continue
            ids = {prompt.name: prompt.token_ids for prompt in layout.prompts}
            runs = run_prompts(ids, num_blocks=4000 // size, block_size=size)
            assert layout.hits == [run.hit_tokens for run in runs]
            again = read_prompts(shared(), layout.parts, template=template)
            assert [prompt.token_ids for prompt in again] == [prompt.token_ids for prompt in layout.prompts]
        if report.suggested is not None:
            assert report.suggested.computed_tokens < report.given.computed_tokens
            for name, parts in report.given.parts.items():
                assert sorted(report.suggested.parts[name]) == sorted(set(parts)), "nothing lost, nothing twice"
                assert report.suggested.parts[name][-1][0] == "user"


def test_documents_in_any_order_become_one_order() -> None:
    report = lint(rag((0, 1, 3), (3, 0, 1), (1, 3, 0)))
    assert report.suggested is not None
    documents = {tuple(text for part, text in parts if part == "document") for parts in report.suggested.parts.values()}
    assert documents == {(DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[3])}
    told = report.layouts().caption
    assert "one order in all prompts and leaves out what stands twice" in told
    assert report.suggested.hit_tokens > 2.5 * report.given.hit_tokens


def test_what_is_common_stands_first_and_the_rest_keeps_its_order() -> None:
    prompts = {
        "a": [("now", "9:15"), ("memory", "likes tea"), ("system", "S"), ("user", "Q"), ("document", "D1")],
        "b": [("now", "9:16"), ("memory", "likes tea"), ("system", "S"), ("user", "Q"), ("document", "D2")],
        "c": [("now", "9:17"), ("memory", "hates tea"), ("system", "S"), ("user", "R")],
    }
    names = {name: [part for part, _ in parts] for name, parts in suggest_order(prompts).items()}
    assert names["a"] == names["b"] == ["system", "memory", "now", "document", "user"]
    assert names["c"] == ["system", "now", "memory", "user"]
    first = suggest_order({"a": [("tools", "T"), ("note", "N")], "b": [("tools", "U"), ("note", "N")]}, first=["tools"])
    assert [part for part, _ in first["a"]] == ["tools", "note"]


def test_a_talk_keeps_its_order() -> None:
    talk = [("user", "Hi"), ("assistant", "Hello"), ("user", "Hi"), ("system", SYSTEM)]
    assert suggest_order({"a": talk, "b": talk}) == {"a": talk, "b": talk}


def test_texts_of_any_kind() -> None:
    texts = [
        "<b>&amp;</b>\x1b",
        "👩‍👩‍👧‍👦 12:30",
        "👩‍👩‍👧‍👧 12:31",
        "한글 문서 하나",
        "하나의 한글 문서",
        "",
        " ",
        "\n\n",
    ]
    prompts = {str(at): [("note", text), ("user", "<script>alert(1)</script>")] for at, text in enumerate(texts)}
    for template in (False, True):
        for size in (1, 16):
            report = lint(prompts, template=template, block_size=size)
            page = report.page(suggested=True)._repr_html_()
            assert "<script" not in page and "<b>" not in page and "\x1b" not in page
            assert repr(report)


def test_the_cost_of_a_finding_is_what_comes_back_when_it_is_mended() -> None:
    """At block size 1: with the clock behind the system text, as many more tokens are found as the finding said."""
    prompts = with_first("note", *CHANGING["a date and time"])
    before = lint(prompts, block_size=1)
    (finding,) = [item for item in before.findings if item.kind == "changing text"]
    moved = {name: [parts[1], parts[0], parts[2]] for name, parts in prompts.items()}
    after = lint(moved, block_size=1)
    assert after.given.hit_tokens - before.given.hit_tokens == finding.tokens


def test_findings_need_two_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(read_prompts(shared(), {"a": "Today: 2026-11-30"}), 16) == []
    monkeypatch.setattr(lint_module, "MAX_PROMPTS", 2)
    with pytest.raises(UsageError, match="3 prompts are more than the 2"):
        lint(rag((0,), (1,), (2,)))
    for wrong in (0, True, 1.5):
        with pytest.raises(UsageError, match="block_size"):
            lint(rag((0,)), block_size=wrong)


def test_the_widget_shows_every_set_in_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    sets = {"clock": with_first("note", *CHANGING["a date"]), "rag": rag((0, 1, 3), (3, 0, 1)), "text": {"a": "Hi"}}
    linter = prompt_linter(shared(), sets)
    assert drive(linter) == 3 * 2 * 2 * 2
    linter.set("prompts", "rag")
    linter.set("layout", "as suggested")
    page = linter._area.value
    assert "<svg" in page and "as suggested" in page and "in another order" in page
    show(linter, lint(sets["rag"]).heads())
    assert capsys.readouterr().out.startswith("prompt  tokens")
    with pytest.raises(UsageError, match="at least one set"):
        prompt_linter(shared(), {})


def test_a_model_without_a_template_has_no_such_switch() -> None:
    class Plain:
        chat_template = None
        encode, token_bytes = shared().encode, shared().token_bytes

    linter = prompt_linter(Plain(), {"one": {"a": "Hi", "b": "Ho"}})  # type: ignore[arg-type]
    assert "template" not in linter.controls and drive(linter) == 4
