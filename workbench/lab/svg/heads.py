"""Where prompts part: bars of tokens, ruled by blocks, with the head that each shares with one before it."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.lab.prompt_heads import CommonHead, TokenPrompt, common_heads
from workbench.lab.svg.canvas import FONT, Canvas, labels, text_width
from workbench.lab.svg.cells import WIDTH
from workbench.lab.svg.hatch import dotted, slanted
from workbench.lab.table import Cell, Table
from workbench.lab.token_text import CUT, shorten, spaced

MAX_BARS = 24
"""Prompts that are drawn; of more the rest is counted."""
_LEFT, _TOP, _ROW, _BAR = 96.0, 40.0, 70.0, 20.0
_WIDE = WIDTH - _LEFT - 16
_WIDEST = 90.0
"""Pixels of a token at most."""
_LEGEND = (
    ("decode", "slanted lines: found, whole blocks that one before it has"),
    ("recompute", "dots: equal too, but no whole block (or the last token)"),
    ("", "plain: computed"),
    ("part", "▼ where it parts; strong lines between blocks, brackets over its parts"),
)


def prompt_heads_table(prompts: Sequence[TokenPrompt], block_size: int, previous: bool = False) -> Table:
    """One row a prompt: what it shares with the best of those before (``previous``: with the one before), in tokens and
    whole blocks; where they part, on both sides."""
    rows: list[list[Cell | str | int]] = []
    for head in common_heads(prompts, block_size, previous):
        prompt, other = head.prompt, head.other
        found = Cell(str(head.hit_tokens), "decode" if head.hit_tokens else "")
        row: list[Cell | str | int] = [prompt.name, len(prompt.token_ids)]
        if other is None:
            rows.append([*row, "–", "–", "–", "–", "–", "–"])
            continue
        here, there = _sides(head)
        rows.append(
            [*row, other.name, head.tokens, found, head.hit_tokens // block_size, head.part, f"{here} | {there}"]
        )
    head_row = ["prompt", "tokens", "most like", "equal tokens", "found", "whole blocks", "parts in", "here | there"]
    size = f"{block_size} token{'' if block_size == 1 else 's'}"
    return Table(head_row, rows, f"blocks of {size}; found = whole blocks of equal tokens, and never the last token")


def render_prompt_heads(
    prompts: Sequence[TokenPrompt], block_size: int, previous: bool = False, title: str = "where prompts part"
) -> str:
    """The same as SVG. Tokens stand in their cells where there is room."""
    heads = common_heads(prompts, block_size, previous)
    drawn = heads[:MAX_BARS]
    longest = max(len(head.prompt.token_ids) for head in drawn)
    unit = min(_WIDEST, _WIDE / longest)
    bottom = _TOP + _ROW * len(drawn) + (16 if len(heads) > len(drawn) else 0)
    canvas = Canvas(WIDTH, bottom + 18 * 2 + 14)
    size = f"{block_size} token{'' if block_size == 1 else 's'}"
    total, found = sum(len(h.prompt.token_ids) for h in heads), sum(h.hit_tokens for h in heads)
    told = f"blocks of {size}: {found} of {total} tokens found"
    canvas.text(8, 16, f"{shorten(title, 80)}; {told}", FONT + 1, bold=True)
    short = labels((head.prompt.name for head in heads), 13)
    texts = [spaced(text) for head in drawn for text in head.prompt.texts]
    # All of them or none: a few texts between empty cells say nothing.
    fitting = sum(_wide(text, FONT - 1) <= unit - 3 for text in texts)
    for row, head in enumerate(drawn):
        _draw(canvas, head, _TOP + _ROW * row, unit, block_size, short, fitting > 0.7 * len(texts))
    if len(heads) > len(drawn):
        canvas.text(8, bottom - 4, f"{len(heads) - len(drawn)} more prompts are not drawn", FONT)
    _legend(canvas, bottom + 6)
    said = ". ".join(_sentence(head) for head in heads)
    return canvas.svg("Where prompts part", f"{told}. {said}.")


def _draw(
    canvas: Canvas, head: CommonHead, top: float, unit: float, block_size: int, short: dict[str, str], told: bool
) -> None:
    prompt, count = head.prompt, len(head.prompt.token_ids)
    y, equal = top + 14, min(head.tokens, count)
    canvas.open(_sentence(head), prompt=prompt.name, tokens=count, equal=head.tokens, found=head.hit_tokens)
    canvas.text(_LEFT - 8, y + 14, short[prompt.name], FONT, "end", bold=True)
    for span in prompt.spans:
        x, wide = _LEFT + unit * span.start, unit * (span.stop - span.start)
        if wide > 0:
            canvas.lines(f"M{x + 0.5:.1f} {y - 2}v-3h{wide - 1:.1f}v3", 0.7, opacity=0.6)
        if text_width(span.name, FONT - 2) < wide - 2:
            canvas.text(x + wide / 2, y - 7, span.name, FONT - 2, "middle")
    zones = ((0, head.hit_tokens, "decode"), (head.hit_tokens, equal, "recompute"), (equal, count, ""))
    for begin, end, tone in zones:
        if begin == end:
            continue
        x, wide = _LEFT + unit * begin, unit * (end - begin)
        canvas.rect(x, y, wide, _BAR, tone, 0.6)
        if tone == "decode":
            slanted(canvas, x, y, wide, _BAR)
        if tone == "recompute":
            dotted(canvas, x, y, wide, _BAR)
    if unit >= 4:
        ticks = "".join(f"M{_LEFT + unit * at:.1f} {y + _BAR - 4:.1f}v4" for at in range(1, count))
        canvas.lines(ticks, 0.5, opacity=0.5)
    # Where lines would run together only every second, fourth, … block is ruled.
    stride = block_size
    while stride * unit < 4:
        stride *= 2
    rules = "".join(f"M{_LEFT + unit * at:.1f} {y - 1:.1f}v{_BAR + 2:.1f}" for at in range(stride, count + 1, stride))
    if rules:
        canvas.lines(rules, 1.4, opacity=0.75)
    for at, text in enumerate(prompt.texts if told else ()):
        shown = spaced(text)
        if _wide(shown, FONT - 1) <= unit - 3:
            canvas.text(_LEFT + unit * (at + 0.5), y + 14, shown, FONT - 1, "middle")
    canvas.text(_LEFT, y + _BAR + 28, shorten(_words(head), 150), FONT - 1)
    if head.other is not None:
        x = _LEFT + unit * equal
        canvas.solid(f"M{x:.1f} {y - 1:.1f}l-4 -7h8z")
        canvas.lines(f"M{x:.1f} {y - 2:.1f}v{_BAR + 6:.1f}", 2, opacity=1)
        _draw_sides(canvas, head, y + _BAR + 14)
    canvas.close()


def _draw_sides(canvas: Canvas, head: CommonHead, y: float) -> None:
    """The text around the parting: what both have, then this one's, then the other's."""
    before, here = head.prompt.near(head.tokens)
    assert head.other is not None
    there = head.other.near(head.tokens)[1]
    common, one, other = (shorten(spaced(text.removesuffix(CUT)), 46) for text in (before, here, there))
    shown = f"{common}¦{one or '(end)'}"
    canvas.text(_LEFT, y, f"“{shown}”", FONT - 1, bold=True)
    x = _LEFT + 1.1 * _wide(shown, FONT - 1) + 24
    canvas.text(x, y, f"{shorten(head.other.name, 20)}: “…¦{other or '(end)'}”", FONT - 1)


def _legend(canvas: Canvas, y: float) -> None:
    canvas.open(part="legend")
    for at, (tone, words) in enumerate(_LEGEND):
        x, top = 8 + (at % 2) * 480.0, y + 18 * (at // 2)
        if tone != "part":
            canvas.rect(x, top, 16, 12, tone, 0.6)
        if tone == "decode":
            slanted(canvas, x, top, 16, 12)
        if tone == "recompute":
            dotted(canvas, x, top, 16, 12)
        canvas.text(x + 22, top + 10, words, FONT - 1)
    canvas.close()


def _words(head: CommonHead) -> str:
    if head.other is None:
        return f"{len(head.prompt.token_ids)} tokens, the first prompt"
    told = f"{head.tokens} of {len(head.prompt.token_ids)} tokens equal those of {head.other.name}"
    told += f"; {head.hit_tokens} found"
    return f"{told}; it parts in “{head.part}”" if head.part != "end" else f"{told}; all of it is there"


def _sentence(head: CommonHead) -> str:
    if head.other is None:
        return f"{head.prompt.name}: {_words(head)}"
    here, there = _sides(head)
    return f"{head.prompt.name}: {_words(head)}: {here} here, {there} there"


def _sides(head: CommonHead) -> tuple[str, str]:
    """What stands at the parting, here and in the other prompt, with what comes before on this side."""
    assert head.other is not None
    before, here = head.prompt.near(head.tokens)
    there = head.other.near(head.tokens)[1]
    return f"“{shorten(spaced(before), 30)}¦{shorten(spaced(here), 30) or '(end)'}”", (
        f"“{shorten(spaced(there), 30) or '(end)'}”"
    )


def _wide(text: str, size: float) -> float:
    return text_width(text, size) + size * 0.45 * sum(text.count(sign) for sign in "…␣")
