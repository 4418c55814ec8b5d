"""The prompt linter: where prompts part, why, what to do, and the order of parts that the cache would find most of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from workbench.checks import shown
from workbench.errors import UsageError
from workbench.lab.controls import Explorer, control, explore
from workbench.lab.prompt_checks import Finding, findings
from workbench.lab.prompt_heads import JOIN, SYSTEM, Parts, TokenPrompt, all_parts, hit_tokens, read_prompts
from workbench.lab.svg.heads import prompt_heads_table, render_prompt_heads
from workbench.lab.table import Cell, Table
from workbench.lab.token_text import shorten
from workbench.text.tokenizer import Tokenizer

MAX_PROMPTS = 64
LAST = ("user", "question")
"""Parts that belong behind all others, unless told otherwise."""
Prompts = Mapping[str, "str | Mapping[str, str] | Parts"]


@dataclass(frozen=True)
class Layout:
    """Prompts in one order of their parts, and what the engine's radix tree has of them, sent in order."""

    prompts: list[TokenPrompt]
    parts: dict[str, list[tuple[str, str]]]
    """Name of a prompt → its (part, text) in order."""
    hits: list[int]
    """Tokens found, for each prompt, where nothing is given up."""

    @property
    def order(self) -> str:
        """Names of the parts as most prompts have them."""
        orders = Counter(tuple(dict.fromkeys(name for name, _ in parts)) for parts in self.parts.values())
        return ", ".join(orders.most_common(1)[0][0])

    @property
    def num_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def hit_tokens(self) -> int:
        return sum(self.hits)

    @property
    def computed_tokens(self) -> int:
        return self.num_tokens - self.hit_tokens


@dataclass(frozen=True)
class PromptReport:
    """What `lint_prompts` found."""

    block_size: int
    template: bool
    given: Layout
    findings: list[Finding]
    suggested: Layout | None
    """The parts in order of how common they are (`suggest_order`); None where that leaves no less to compute."""

    def heads(self, suggested: bool = False) -> Table:
        """Where each prompt parts from those before it."""
        return prompt_heads_table(self._layout(suggested).prompts, self.block_size)

    def table(self) -> Table:
        """The findings, one a row."""
        rows = [
            [Cell(f.kind, "alert"), shorten(", ".join(f.prompts), 40), f.words, f.remedy, f.tokens or "–"]
            for f in self.findings
        ]
        told = (
            "tokens: what the prompts of the row compute, together, though it might be met again; rows may tell of the "
            "same tokens, so they do not add up"
            if rows
            else "nothing was found that makes these prompts part earlier than they must"
        )
        return Table(["finding", "prompts", "what", "remedy", "tokens"], rows, told)

    def layouts(self) -> Table:
        """The order of the parts as given and as suggested, with what the engine's index finds of each."""
        rows: list[list[Cell | str | int]] = []
        for name, layout in (("as given", self.given), ("suggested", self.suggested)):
            if layout is not None:
                share = f"{layout.hit_tokens / layout.num_tokens:.0%}"
                rows.append([name, layout.order, layout.num_tokens, layout.hit_tokens, share, layout.computed_tokens])
        size = self.block_size
        told = f"met again in the engine's radix tree, blocks of {size}, prompts sent in order, nothing evicted"
        if self.suggested is None:
            told += "; ordering the parts by how common they are leaves no less to compute"
        else:
            told += "; the suggestion also puts the parts of a kind into one order in all prompts and leaves out what "
            told += "stands twice"
        return Table(["layout", "parts of most prompts", "tokens", "met again", "share", "computed"], rows, told)

    def svg(self, suggested: bool = False) -> str:
        """The picture of where they part."""
        title = "as suggested" if suggested and self.suggested else "as given"
        return render_prompt_heads(self._layout(suggested).prompts, self.block_size, title=title)

    def page(self, suggested: bool = False) -> _Page:
        """Picture, findings and layouts in one, for a widget."""
        return _Page(self.svg(suggested), [self.layouts(), self.table()])

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, (self.heads(), self.table(), self.layouts())))

    def _layout(self, suggested: bool) -> Layout:
        return self.suggested if suggested and self.suggested is not None else self.given


@dataclass(frozen=True)
class _Page:
    svg: str
    tables: list[Table]

    def _repr_html_(self) -> str:
        return self.svg + "".join(table._repr_html_() for table in self.tables)


def lint_prompts(
    tokenizer: Tokenizer,
    prompts: Prompts,
    block_size: int = 16,
    template: bool = False,
    last: Collection[str] = LAST,
    join: str = JOIN,
) -> PromptReport:
    """Looks at prompts that are sent in this order; see `read_prompts` for their forms, ``template`` and ``join``.

    The suggested layout puts first what stands in most prompts (word for word), leaves out what a prompt says twice,
    and keeps the given order where parts are equally common; parts named in ``last`` stay behind all others, and with
    ``template`` the system message before them. A talk (with an ``assistant`` part) keeps its order. Raises UsageError
    as `read_prompts`, for more than 64 prompts and a block size below 1.
    """
    parts = all_parts(prompts)
    if len(parts) > MAX_PROMPTS:
        raise UsageError(f"{len(parts)} prompts are more than the {MAX_PROMPTS} that are compared pair by pair")
    if type(block_size) is not int or block_size < 1:
        raise UsageError(f"block_size={shown(block_size)} must be a whole number from 1 on")
    given = _laid(tokenizer, parts, block_size, template, join)
    better = suggest_order(parts, last, SYSTEM if template else ())
    suggested = None
    if better != parts:
        suggested = _laid(tokenizer, better, block_size, template, join)
        if suggested.computed_tokens >= given.computed_tokens:
            suggested = None
    return PromptReport(block_size, template, given, findings(given.prompts, block_size, last), suggested)


def suggest_order(
    prompts: Mapping[str, Parts], last: Collection[str] = LAST, first: Collection[str] = ()
) -> dict[str, list[tuple[str, str]]]:
    """The parts of each prompt, what stands in most prompts first, nothing twice; a talk as it is."""
    items = Counter(item for parts in prompts.values() for item in dict.fromkeys(_key(item) for item in parts))
    names: dict[str, int] = {}
    seen: dict[tuple[str, str], int] = {}
    for parts in prompts.values():
        for item in parts:
            names.setdefault(item[0], len(names))
            seen.setdefault(_key(item), len(seen))

    def rank(item: tuple[str, str]) -> tuple[bool, bool, int, int, int]:
        return item[0] in last, item[0] not in first, -items[_key(item)], names[item[0]], seen[_key(item)]

    found = {}
    for name, parts in prompts.items():
        once = {_key(item): item for item in reversed(parts)}.values()
        is_talk = any(part == "assistant" for part, _ in parts)
        found[name] = list(parts) if is_talk else sorted(once, key=rank)
    return found


def prompt_linter(
    tokenizer: Tokenizer,
    sets: Mapping[str, Prompts],
    *,
    block_sizes: Sequence[int] = (1, 16),
    last: Collection[str] = LAST,
    height: int = 640,
) -> Explorer:
    """Controls over `lint_prompts`: which of ``sets``, block size, chat template (if the model has one), layout."""
    if not sets:
        raise UsageError("the linter needs at least one set of prompts")
    controls = {
        "prompts": control("prompts", choices=list(sets)),
        "block_size": control("block size", choices=list(block_sizes), unit="tokens"),
        "layout": control("layout", choices=("as given", "as suggested")),
    }
    if tokenizer.chat_template is not None:
        controls["template"] = control("through the chat template", default=False)

    def look(prompts: str, block_size: int, layout: str, template: bool = False) -> _Page:
        return lint_prompts(tokenizer, sets[prompts], block_size, template, last).page(layout == "as suggested")

    return explore(look, controls, height=height)


def _laid(
    tokenizer: Tokenizer, parts: Mapping[str, list[tuple[str, str]]], block_size: int, template: bool, join: str
) -> Layout:
    read = read_prompts(tokenizer, parts, template, join)
    return Layout(read, dict(parts), hit_tokens([prompt.token_ids for prompt in read], block_size))


def _key(item: tuple[str, str]) -> tuple[str, str]:
    return item[0], item[1].strip()
