"""Prompts as tokens with named parts, and where each parts from those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.checks import shown
from workbench.errors import UsageError
from workbench.kv.prefix_index import Trail, common_head
from workbench.kv.radix import RadixIndex
from workbench.lab.token_text import joined, texts_of
from workbench.text.tokenizer import Tokenizer

Parts = Sequence[tuple[str, str]]
"""(name, text) in the order of the prompt; a name may come more than once."""
PROMPT, TEMPLATE = "prompt", "template"
"""Names of a prompt's only part, and of what a chat template writes around the parts."""
JOIN = "\n\n"
SYSTEM = ("system", "tools", "developer")
"""Parts that a chat template puts into the system message."""
_NEAR = 5
"""Tokens of context on either side of a parting."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start`` to ``stop`` of a prompt, which begin in one of its parts."""

    name: str
    text: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    name: str
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    """One readable text a token."""
    spans: tuple[Span, ...]
    seams: frozenset[int] = frozenset()
    """Tokens that begin in one part and end in another."""
    raw: bytes = b""
    """The bytes of all tokens in a row."""
    offsets: tuple[int, ...] = ()
    """Where each token begins in them."""

    def before(self, token: int) -> str:
        """The text before a token; a character that it cuts belongs to neither side."""
        return self.raw[: self.offsets[token] if token < len(self.offsets) else None].decode(errors="ignore")

    def rest(self, token: int) -> str:
        """The text from a token on."""
        return self.raw[self.offsets[token] :].decode(errors="ignore") if token < len(self.offsets) else ""

    def part_at(self, token: int) -> str:
        """Name of the part in which a token begins; ``end`` behind the last."""
        return next((span.name for span in self.spans if span.start <= token < span.stop), "end")

    def near(self, token: int) -> tuple[str, str]:
        """What stands before a token, and from it on."""
        return joined(self.texts[max(0, token - _NEAR) : token]), joined(self.texts[token : token + _NEAR])


@dataclass(frozen=True, slots=True)
class CommonHead:
    """What a prompt shares with one before it, from the first token on."""

    prompt: TokenPrompt
    other: TokenPrompt | None
    """None for the first prompt."""
    tokens: int
    """Equal tokens."""
    hit_tokens: int
    """Those of them that a cache with room for everything finds: whole blocks, and never the last token."""

    @property
    def part(self) -> str:
        """The part in which they part."""
        return self.prompt.part_at(self.tokens)


def read_prompts(
    tokenizer: Tokenizer,
    prompts: Mapping[str, str | Mapping[str, str] | Parts],
    template: bool = False,
    join: str = JOIN,
) -> list[TokenPrompt]:
    """Prompts by name, each a text, a mapping from parts to texts, or a list of (part, text).

    Parts follow one another with ``join`` between them, which counts to the part before. With ``template`` they become
    messages in the model's own format: ``system``, ``developer`` and ``tools`` the system message, ``assistant`` an
    answer, every other part the user's; neighbours of one role are joined. Raises UsageError for no prompts, for an
    empty one or one of another form, and for a model without a template.
    """
    found = []
    for name, parts in all_parts(prompts).items():
        if not any(text for _, text in parts):
            raise UsageError(f"prompt {name!r} is empty: give it some text")
        pieces = _pieces(tokenizer, parts, join) if template else _joined_pieces(parts, join)
        found.append(_read(tokenizer, name, pieces))
    return found


def all_parts(prompts: Mapping[str, str | Mapping[str, str] | Parts]) -> dict[str, list[tuple[str, str]]]:
    """The parts of each prompt. Raises UsageError where there is none, or for one of another form."""
    if not isinstance(prompts, Mapping):
        raise UsageError(f"prompts={shown(prompts)} must be a mapping from names to prompts, such as {{'a': 'Hello'}}")
    if not prompts:
        raise UsageError("there are no prompts: give at least one")
    return {name: _parts_of(name, given) for name, given in prompts.items()}


def _parts_of(name: str, given: str | Mapping[str, str] | Parts) -> list[tuple[str, str]]:
    if isinstance(given, str):
        return [(PROMPT, given)]
    try:
        parts = [(part, text) for part, text in (given.items() if isinstance(given, Mapping) else given)]
    except (TypeError, ValueError):
        parts = [("", None)]  # type: ignore[list-item]
    if not all(isinstance(part, str) and isinstance(text, str) for part, text in parts):
        raise UsageError(
            f"prompt {shown(name)} is {shown(given)}: a text was expected, a mapping from parts to texts or a list of "
            "(part, text)"
        )
    return parts


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are equal from the first on."""
    return common_head(one, other, min(len(one), len(other)))


def common_heads(prompts: Sequence[TokenPrompt], block_size: int, previous: bool = False) -> list[CommonHead]:
    """For each prompt what it shares with that of all before it with which it shares most (the first of equals).

    ``previous``: with the one just before it. Then what a cache finds may be more.
    """
    if block_size < 1:
        raise UsageError(f"block_size={block_size} must be at least 1")
    heads = []
    for at, prompt in enumerate(prompts):
        best: TokenPrompt | None = None
        most = -1
        for other in prompts[max(0, at - 1) if previous else 0 : at]:
            count = common(prompt.token_ids, other.token_ids)
            if count > most:
                best, most = other, count
        usable = min(max(most, 0), len(prompt.token_ids) - 1) // block_size * block_size
        heads.append(CommonHead(prompt, best, max(most, 0), usable))
    return heads


def hit_tokens(prompts: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """Tokens that the engine's own radix tree finds for each prompt, sent in order, where nothing is ever given up."""
    index, found, block = RadixIndex(block_size), [], 0
    for token_ids in prompts:
        trail = Trail(b"", 0)
        trail.extend(token_ids)
        head = index.match(trail, (len(token_ids) - 1) // block_size)
        index.hold(trail, len(head))
        rest = range(block, block + len(token_ids) // block_size - len(head))
        block = rest.stop
        index.publish(trail, rest)
        index.release(trail)
        found.append(len(head) * block_size)
    return found


def _joined_pieces(parts: Parts, join: str) -> list[tuple[str, str]]:
    last = len(parts) - 1
    return [(name, text if at == last else text + join) for at, (name, text) in enumerate(parts)]


def _pieces(tokenizer: Tokenizer, parts: Parts, join: str) -> list[tuple[str, str]]:
    """The parts and what the template writes around them, in order."""
    # Rendered once with a mark in the place of each part, so that it is known what is part and what is template.
    marks = [f"\ue000{chr(0xE100 + at)}\ue001" for at in range(len(parts))]
    names = [name for name, _ in parts]
    skeleton = tokenizer.decode(tokenizer.apply_chat_template(_messages(names, marks, join)), skip_special_tokens=False)
    pieces: list[tuple[str, str]] = []
    inside: str | None = None
    while skeleton:
        head, mark, skeleton = skeleton.partition("\ue000")
        if head:
            # What joins two parts counts to the part before, as it does without a template.
            if inside is not None and head == join:
                pieces[-1] = (inside, pieces[-1][1] + head)
            else:
                pieces.append((TEMPLATE, head))
        if mark:
            inside, text = parts[ord(skeleton[0]) - 0xE100]
            pieces.append((inside, text))
            skeleton = skeleton[2:]
    whole = tokenizer.apply_chat_template(_messages(names, [text for _, text in parts], join))
    if tokenizer.encode("".join(text for _, text in pieces)) != whole:
        # The template changes what it is given (trims it, say), so nobody knows whose each token is.
        return [(PROMPT, tokenizer.decode(whole, skip_special_tokens=False))]
    return pieces


def _messages(names: Sequence[str], texts: Sequence[str], join: str) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    for name, text in zip(names, texts, strict=True):
        role = "system" if name in SYSTEM else "assistant" if name == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += join + text
        else:
            messages.append({"role": role, "content": text})
    return messages


def _read(tokenizer: Tokenizer, name: str, pieces: Parts) -> TokenPrompt:
    text = "".join(text for _, text in pieces)
    ids = tokenizer.encode(text)
    if not ids:
        raise UsageError(f"prompt {name!r}: the tokenizer finds no token in {text!r}")
    raw = [tokenizer.token_bytes(token_id) for token_id in ids]
    if b"".join(raw) != text.encode():
        pieces = [(PROMPT, text)]  # it normalizes texts, so places in the text are not places in the tokens
    ends, starts, total = [], [], 0
    for part in raw:
        starts.append(total)
        total += len(part)
        ends.append(total)
    spans, seams, begin, at = [], set(), 0, 0
    for number, (part_name, part_text) in enumerate(pieces):
        begin += len(part_text.encode())
        last = number == len(pieces) - 1
        stop = len(ids) if last else next((i for i in range(at, len(ids)) if starts[i] >= begin), len(ids))
        if stop > at and not last and ends[stop - 1] > begin:
            seams.add(stop - 1)
        spans.append(Span(part_name, part_text, at, stop))
        at = stop
    shown = tuple(texts_of(tokenizer)(ids))
    return TokenPrompt(name, tuple(ids), shown, tuple(spans), frozenset(seams), b"".join(raw), tuple(starts))
