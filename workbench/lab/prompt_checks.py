"""What makes prompts part that could have gone on alike: rules over the places where they part, in words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from workbench.lab.prompt_heads import TEMPLATE, CommonHead, Span, TokenPrompt, common, common_heads
from workbench.lab.token_text import shorten, visible

_CHANGING = (
    ("a UUID", re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")),
    ("a date and time", re.compile(r"\b\d{4}-\d{2}-\d{2}[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?Z?")),
    ("a date", re.compile(
        r"\b\d{4}[-/.]\d{1,2}[-/.]\d{1,2}\b|\b\d{1,2}[/.]\d{1,2}[/.]\d{2,4}\b|\d{4}년 ?\d{1,2}월(?: ?\d{1,2}일)?|"
        r"\b(?:\d{1,2} )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.? \d{1,4}(?:, \d{4})?\b")),
    ("a time of day", re.compile(r"\b\d{1,2}:\d{2}(?::\d{2})?(?: ?[ap]m)?\b|\d{1,2}시(?: ?\d{1,2}분)?", re.I)),
    ("seconds since 1970", re.compile(r"\b1\d{9}(?:\d{3})?\b")),
    ("a hexadecimal id", re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8,}\b")),
    ("a counter", re.compile(
        r"\b(?:request|session|turn|message|attempt|ticket|order|user|id|no|number)\b\.?(?: id)?\s*[:#=]?\s*#?\d+\b",
        re.I)),
)  # fmt: skip
"""Texts that are another every time, the more particular first."""
_LIKE = 80
"""Characters behind a parting that are compared."""
_NAMED = 4
"""Prompts of which a merged finding's words give the names; a table has all of them beside it."""


class Finding(NamedTuple):
    kind: str
    """``changing text``, ``format``, ``spelling``, ``order``, ``parts``, ``template``, ``seam``, ``duplicate`` or
    ``no whole block``."""
    part: str
    """In which part of the prompt."""
    prompts: tuple[str, ...]
    """Where it was seen."""
    words: str
    """True of all ``prompts``; what is true of some only, such as a text or a count, says of which."""
    remedy: str
    tokens: int
    """Tokens of all ``prompts`` that are computed though they might have been met again, as far as can be told; 0: not
    known. Two findings may tell of the same tokens."""
    gist: str = ""
    """What findings that are told as one have in common besides kind and part."""


class _Pair(NamedTuple):
    """A prompt and one before it."""

    one: TokenPrompt
    other: TokenPrompt
    equal: int
    behind: tuple[Span, ...]
    """Parts of ``one`` that begin at the parting or behind it, and that ``other`` has too."""

    @property
    def lost(self) -> int:
        """Their tokens."""
        return sum(span.stop - span.start for span in self.behind)


def findings(prompts: Sequence[TokenPrompt], block_size: int, last: Collection[str] = ()) -> list[Finding]:
    """All that was found, what costs most first; equal ones of several prompts as one.

    ``last``: parts that belong at the end, so that it costs nothing if they are equal there.
    """
    pairs = [_closest(prompts, at, last) for at in range(1, len(prompts))]
    found = [finding for pair in pairs for finding in _of_pair(pair)]
    found += [finding for prompt in prompts for finding in _duplicates(prompt)]
    found += [finding for head in common_heads(prompts, block_size) for finding in _no_whole_block(head, block_size)]
    return sorted(_merged(found), key=lambda finding: -finding.tokens)


def _closest(prompts: Sequence[TokenPrompt], at: int, last: Collection[str]) -> _Pair:
    """Of the prompts before, the one with which most is or could be shared; the later of equals."""
    one = prompts[at]

    pairs = []
    for other in reversed(prompts[:at]):
        equal = common(one.token_ids, other.token_ids)
        behind = [span for span in _parts(one) if span.start >= equal and span.name not in last and _has(other, span)]
        pairs.append(_Pair(one, other, equal, tuple(behind)))
    return max(pairs, key=lambda pair: pair.equal + pair.lost)


def _of_pair(pair: _Pair) -> Iterator[Finding]:
    one, other, equal, lost = pair.one, pair.other, pair.equal, pair.lost
    if equal == len(one.token_ids):
        return
    part, names = one.part_at(equal), (one.name,)
    if changing := _changing(pair):
        kind, here, there = changing
        behind = len(one.token_ids) - equal
        yield Finding(
            "changing text",
            part,
            names,
            f"{kind} stands in “{part}”, {behind} tokens before the end, and is another than in {other.name}: "
            f"“{here}”, there “{there}”",
            "move it behind everything that stays the same, or round it, or leave it out",
            lost,
            kind,
        )
    elif _same_but_for_format(pair):
        here, there = (shorten(visible(text), 30) for text in _in_part(pair))
        yield Finding(
            "format",
            part,
            names,
            f"in “{part}” two texts differ in spaces, capitals or punctuation only: “{here}” here, “{there}” before",
            "write it in exactly one way; equal to a reader is not equal to a cache",
            max(lost, _equal_tail(pair)),
        )
    elif (spelled := _spelling(pair)) is not None:
        yield Finding(
            "spelling",
            part,
            names,
            f"in “{part}” two texts are nearly the same: “{spelled[0]}” here, “{spelled[1]}” before",
            "if they mean the same, write them the same: one letter ends the common head",
            max(lost, _equal_tail(pair)),
        )
    if lost:
        yield _of_parts(pair)
    if TEMPLATE in (part, other.part_at(equal)):
        yield Finding(
            "template",
            part,
            names,
            f"it parts from {other.name} in what the chat template writes, after {equal} tokens",
            "keep the kinds of messages and their order the same (a system message in all or in none), and send the "
            "history as the template wrote it",
            0,
        )
    if equal in one.seams or equal in other.seams:
        yield Finding(
            "seam",
            part,
            names,
            f"one token ends a part and begins the next, so what is equal ends early, in “{part}”",
            "end a part with a line break, or begin the next with something that stands alone",
            0,
        )


def _no_whole_block(head: CommonHead, block_size: int) -> Iterator[Finding]:
    """Where the longest head that any prompt before has is shorter than a block."""
    tokens, prompt = head.tokens, head.prompt
    # A prompt that is the head of another as a whole parts nowhere.
    if head.other is not None and 0 < tokens < len(prompt.token_ids) and not head.hit_tokens:
        yield Finding(
            "no whole block",
            head.part,
            (prompt.name,),
            f"no more than the first {tokens} tokens are those of a prompt before ({head.other.name}), which is no "
            f"whole block of {block_size}: nothing is met again",
            "smaller blocks, or partial reuse (prefix_partial_reuse); or let more tokens stand before what differs",
            tokens,
        )


def _of_parts(pair: _Pair) -> Finding:
    """What the order of the parts costs: equal parts stand behind the parting."""
    one, other, equal, lost = pair.one, pair.other, pair.equal, pair.lost
    here, there = _span_at(one, equal), _span_at(other, equal)
    names = ", ".join(f"“{name}”" for name in dict.fromkeys(span.name for span in pair.behind))
    mine = [(span.name, span.text.strip()) for span in _parts(one)]
    theirs = [(span.name, span.text.strip()) for span in _parts(other)]
    swapped = here is not None and there is not None and _has(other, here) and _has(one, there)
    if swapped or (sorted(mine) == sorted(theirs) and mine != theirs):
        return Finding(
            "order",
            names,
            (one.name,),
            f"the same parts ({names}) stand in another order than in {other.name}",
            "give parts one order, such as by their id or by how often they are used",
            lost,
        )
    first = f"“{here.name}”" if here is not None else "the end"
    return Finding(
        "parts",
        names,
        (one.name,),
        f"{names}: {lost} tokens that are the same in {other.name} stand behind {first}, which differs",
        "let what is the same in most prompts stand first",
        lost,
    )


def _duplicates(prompt: TokenPrompt) -> Iterator[Finding]:
    """Parts, or paragraphs of five words and more, that stand in a prompt twice."""
    seen: dict[str, str] = {}
    for span in _parts(prompt):
        whole = span.text.strip()
        paragraphs = [text.strip() for text in whole.split("\n\n")]
        for text in paragraphs if len(paragraphs) == 1 else [whole, *paragraphs]:
            if len(text.split()) < 5:
                continue
            if text in seen:
                tokens = round((span.stop - span.start) * len(text) / max(1, len(span.text)))
                where = " and ".join(f"“{name}”" for name in dict.fromkeys((seen[text], span.name)))
                words = f"“{shorten(visible(text), 40)}” stands twice, in {where}"
                yield Finding("duplicate", span.name, (prompt.name,), words, "leave the second one out", tokens)
                break
            seen[text] = span.name


def _changing(pair: _Pair) -> tuple[str, str, str] | None:
    """Kind and both texts, where the parting lies in a text of a changing kind in both prompts."""
    for kind, pattern in _CHANGING:
        here, there = (_match_at(prompt, pair.equal, pattern) for prompt in (pair.one, pair.other))
        if here and there and here != there:
            return kind, here, there
    return None


def _match_at(prompt: TokenPrompt, token: int, pattern: re.Pattern[str]) -> str:
    """The text that the pattern finds around a token, if any."""
    before = prompt.before(token)
    place, text = len(before), before + prompt.rest(token)
    for match in pattern.finditer(text, max(0, place - 60)):
        if match.start() <= place < match.end():
            return match.group()
        # A space is often part of the token with which a word begins.
        if match.start() == place + 1 and text[place] == " ":
            return match.group()
    return ""


def _same_but_for_format(pair: _Pair) -> bool:
    here, there = (_plain(text) for text in _in_part(pair))
    count = min(len(here), len(there), _LIKE // 4)
    return count >= 6 and here[:count] == there[:count]


def _spelling(pair: _Pair) -> tuple[str, str] | None:
    """Both texts, where the next line is nearly the same."""
    word = re.search(r"\S*\Z", pair.one.before(pair.equal))
    assert word is not None
    # From the beginning of the word in which they part; a template's signs are no part of it.
    begin = re.split(r"[|>]", word.group())[-1]
    here, there = (begin + text.partition("\n")[0] for text in _in_part(pair))
    if min(len(here), len(there)) < 12 or SequenceMatcher(None, here, there, autojunk=False).ratio() < 0.85:
        return None
    return shorten(visible(here), 40), shorten(visible(there), 40)


def _in_part(pair: _Pair) -> tuple[str, str]:
    """Both texts from the parting to the end of the part in which it lies, at most so much as is compared."""
    found = []
    for prompt in (pair.one, pair.other):
        span = _span_at(prompt, pair.equal)
        rest = prompt.rest(pair.equal)
        end = len(rest) - len(prompt.rest(span.stop)) if span is not None else 0
        found.append(rest[: min(end, _LIKE)])
    return found[0], found[1]


def _plain(text: str) -> str:
    """Letters and digits alone, in small letters."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def _equal_tail(pair: _Pair) -> int:
    """Tokens at the end of both prompts that are equal behind the parting."""
    one, other, equal = pair.one.token_ids, pair.other.token_ids, pair.equal
    return min(common(one[::-1], other[::-1]), len(one) - equal, len(other) - equal)


def _has(prompt: TokenPrompt, span: Span) -> bool:
    return any((item.name, item.text.strip()) == (span.name, span.text.strip()) for item in _parts(prompt))


def _parts(prompt: TokenPrompt) -> list[Span]:
    return [span for span in prompt.spans if span.name != TEMPLATE]


def _span_at(prompt: TokenPrompt, token: int) -> Span | None:
    return next((span for span in prompt.spans if span.start <= token < span.stop), None)


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """Findings of one kind in the same part of several prompts as one; its words say of which prompts they are true."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault((finding.kind, finding.part, finding.gist), []).append(finding)
    merged = []
    for group in groups.values():
        first, names = group[0], _names(group)
        # Of one prompt more may be told: the first words of each, and the others with it.
        same = _names([finding for finding in group if finding.words == first.words])
        words = first.words
        if others := [name for name in names if name not in same]:
            where = ", ".join(others) if len(others) <= _NAMED else f"the other {len(others)}"
            words = f"in {', '.join(same)}: {words}; likewise, with other texts or counts, in {where}"
        merged.append(first._replace(prompts=names, words=words, tokens=sum(finding.tokens for finding in group)))
    return merged


def _names(group: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for finding in group for name in finding.prompts))
