"""Notebook 15: how much of a prompt is met again, and a prompt put together so that it is much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb15_cases as cases
from workbench.lab.help_desk import Part, part

# The solutions. The text of each function, without what stands in its gap, is the skeleton in the notebook.


def met_again(seen: list[list[int]], prompt: list[int], block_size: int) -> int:
    """Tokens of `prompt` that need not be computed when the prompts in `seen` were computed before it and nothing was
    thrown away. Only full blocks of block_size tokens are kept, and the last token is always computed."""
    # your turn: where does the prompt part from each of those seen?
    most = 0
    for other in seen:
        common = 0
        while common < min(len(other), len(prompt)) and other[common] == prompt[common]:
            common += 1
        most = max(most, min(common, len(prompt) - 1))
    return most // block_size * block_size
    # end


def assemble(parts: list[dict]) -> list[str]:
    """The texts of one prompt, in the order in which they are to stand in it. parts: as a program comes by them, each
    {"kind": …, "key": …, "text": …}. Kinds: system, tool, document, user, time, question. key: a document's number, a
    tool's name, else "". A part may come twice."""
    # your turn: what changes least stands first, and equal sets become equal texts
    order = ["system", "tool", "document", "user", "time", "question"]
    texts = []
    for one in sorted(parts, key=lambda one: (order.index(one["kind"]), one["key"])):
        if one["text"] not in texts:
            texts.append(one["text"])
    return texts
    # end


def _as_assemble(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `help_desk.assemble`: the desk lays its prompts out by the function."""

    def assembled(parts: Sequence[Part]) -> list[str]:
        return list(function([dict(one) for one in parts]))

    return assembled


_FOUND = [
    part("document", "Document 7: Cars wait.", 7),
    part("document", "Document 2: Dogs travel free.", 2),
    part("document", "Document 7: Cars wait.", 7),
    part("question", "Question: May my dog drive?"),
]
_OFFERED = [part("tool", "Tool: next_boat", "next_boat"), part("tool", "Tool: book_car", "book_car"), _FOUND[-1]]

EXERCISES = (
    Exercise(
        notebook="15",
        id="met-again",
        title="How much is met again",
        difficulty=1,
        minutes=10,
        statement="Some prompts were computed, and their full blocks are kept. How many tokens of the next prompt are "
        "met again? Reuse goes from the first token to the first difference, in whole blocks. The last token of a "
        "prompt is always computed: its logits choose the first token of the answer.",
        function=met_again,
        reference=cases.last_hit,
        examples=(
            Example(([[5, 6, 7, 8, 9]], [5, 6, 7, 1], 1), 3, "they part at the fourth token"),
            Example(([[5, 6, 7, 8, 9]], [5, 6, 7, 1], 2), 2, "only one block of two is equal as a whole"),
            Example(([[5, 6, 7, 8], [5, 2]], [5, 6, 7, 8], 2), 2, "the last token is computed, and with it its block"),
            Example(([[1, 6, 7, 8]], [5, 6, 7, 8], 1), 0, "what is equal after the first difference does not count"),
        ),
        cases=cases.met_cases,
        hints=(
            "Which of the prompts seen decides, if several begin like the new one?",
            "The tokens met again are a multiple of block_size, no more than the longest common head with any one "
            "prompt seen, and less than the length of the prompt.",
            "For each prompt seen count equal tokens from the front and stop at the first difference or the end of "
            "either. Take the longest, at most all tokens but one, and cut it down to whole blocks.",
        ),
        mutants=(
            Mutant("the last token too", "min(common, len(prompt) - 1)", "min(common, len(prompt))"),
            Mutant("tokens for blocks", "most // block_size * block_size", "most"),
            Mutant("blocks for tokens", "most // block_size * block_size", "most // block_size"),
            Mutant("one block too many", "most // block_size * block_size", "-(-most // block_size) * block_size"),
            Mutant("only the last seen", "max(most, min(", "max(0, min("),
            Mutant("beyond the end of what was seen", "min(len(other), len(prompt))", "len(prompt)"),
        ),
    ),
    Exercise(
        notebook="15",
        id="assemble",
        title="A prompt that is met again",
        difficulty=2,
        minutes=20,
        statement="A help desk puts its prompts together from parts, in the order in which it comes by them. Lay "
        "them out better. Rules: each text stands in the prompt once, nothing is lost, documents stand in the order of "
        "their numbers and tools in that of their names, the question stands last. The check sends streams of prompts "
        "to the engine's radix tree, with words for tokens, and asks for at least 99 % of what the best order of kinds "
        "meets again. Find that order by what changes least over the whole stream, not within one prompt: "
        "`help_desk.asks(40, 5)` gives a stream to look at.",
        function=assemble,
        reference=cases.by_trying,
        given={"found": _FOUND, "offered": _OFFERED},
        examples=(
            Example(
                (_FOUND,),
                ["Document 2: Dogs travel free.", "Document 7: Cars wait.", "Question: May my dog drive?"],
                "document 7 was found twice",
            ),
            Example((_OFFERED,), ["Tool: book_car", "Tool: next_boat", "Question: May my dog drive?"]),
        ),
        cases=cases.assemble_cases,
        hints=(
            "Which kinds are the same in all prompts, which in some, and which in none?",
            "Prompts with the same set of documents must have the same texts up to where the person begins. A time "
            "that is another one in each prompt ends every hit, so nothing that others share may stand behind it.",
            "Sort the parts by the place of their kind in a list that you choose and, within a kind, by key. Then take "
            "each text unless you have it already.",
        ),
        mutants=(
            Mutant("documents as they were found", ', one["key"])', ', "")'),
            Mutant("numbers as texts", ', one["key"])', ', str(one["key"]))'),
            Mutant("twice is twice", 'if one["text"] not in texts', "if True"),
            Mutant(
                "the time first",
                '["system", "tool", "document", "user", "time",',
                '["time", "system", "tool", "document", "user",',
            ),
            Mutant("the person before the documents", '"document", "user", "time"', '"user", "document", "time"'),
            Mutant("the time before the person", '"user", "time"', '"time", "user"'),
            Mutant(
                "the question first",
                '["system", "tool", "document", "user", "time", "question"]',
                '["question", "system", "tool", "document", "user", "time"]',
            ),
            Mutant("no time", "not in texts:", 'not in texts and one["kind"] != "time":'),
            Mutant(
                "one text only of each kind",
                'if one["text"] not in texts',
                'if one["kind"] not in [p["kind"] for p in parts if p["text"] in texts]',
            ),
        ),
        swap=Swap("workbench.lab.help_desk", "", "assemble", _as_assemble),
    ),
)
