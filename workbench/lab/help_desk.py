"""A help desk whose prompts are put together from parts: system text, tools, documents found, user, time, question.

A part is a dict: its ``kind`` (one of `KINDS`), a ``key`` that tells parts of one kind apart (a document's number, a
tool's name, else empty) and its ``text``. `ask` gives the parts as a program comes by them; `assemble` makes texts of
them, and that is what decides how much of a prompt is met again. Documents, people and questions are made up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

KINDS = ("system", "tool", "document", "user", "time", "question")
Part = dict[str, Any]

SYSTEM = (
    "You are the help desk of the Norham ferries. Answer from the documents below and from nothing else. If they do "
    "not hold the answer, say so. Use at most two sentences and name the document."
)
DOCUMENTS = {
    1: "The ferry to Hern leaves Norham at 6:10, 9:40, 13:10 and 17:45. On Sundays the first boat does not sail.",
    2: "A single ticket costs 14 crowns, a return 24. Children under six travel free, and so does a dog on a lead.",
    3: "Bicycles stand on the lower deck. There is room for twelve on each boat, first come, first served.",
    4: "In a storm the office decides two hours before a boat leaves. Tickets of a cancelled boat are good for a year.",
    5: "The crossing to Hern takes 55 minutes. Boats do not wait for trains, and the gate closes five minutes before.",
    6: "Lost things lie in the office on the quay for thirty days. The office is open from 8 to 18, not on Sundays.",
    7: "Cars must stand in their lane half an hour before the boat leaves. Without a booking they come last.",
    8: "The night boat to Stell leaves on Fridays at 22:30 and arrives at 6:00. Cabins have two or four beds.",
}
TOPICS = (
    ("When is the last boat to Hern?", (1, 2, 5, 7)),
    ("When must I be there with my car?", (7, 1, 5)),
    ("What does a return ticket for me and my dog cost?", (2, 3)),
    ("Is there a boat on Sunday, and how long does it take?", (1, 5, 2, 7)),
    ("Can I take my bicycle?", (3, 7, 2)),
    ("What happens to my ticket in a storm?", (4, 2)),
    ("Where is the umbrella that I left on board?", (6, 8)),
)
"""Questions, each with the documents that a search finds for it, the best first."""
USERS = (
    "Mina Park, a monthly ticket",
    "Tom Reed, no booking",
    "Ola Berg, a car and two children",
    "Ivo Santos, a group of ten",
)
TOOLS: dict[str, dict[str, Any]] = {
    "next_boat": {"description": "The next boat to a port.", "parameters": {"port": "string", "after": "time"}},
    "book_car": {"description": "Books a place for a car.", "parameters": {"plate": "string", "boat": "time"}},
    "report_lost": {"description": "Notes a lost thing.", "parameters": {"what": "string", "phone": "string"}},
}


def part(kind: str, text: str, key: int | str = "") -> Part:
    return {"kind": kind, "key": key, "text": text}


def document(number: int) -> Part:
    return part("document", f"Document {number}: {DOCUMENTS[number]}", number)


def tool(name: str) -> Part:
    return part("tool", f"Tool: {json.dumps({'name': name, **TOOLS[name]})}", name)


def ask(topic: int, user: int, minute: int, *, tools: Sequence[str] = (), twice: Sequence[int] = ()) -> list[Part]:
    """The parts of one prompt, in the order in which a program comes by them.

    ``topic``, ``user``: places in `TOPICS` and `USERS`. ``minute``: of the day, shown as a time. ``tools``: the names
    of those offered. ``twice``: numbers of documents that the search finds once more.
    """
    question, found = TOPICS[topic]
    return [
        part("time", f"Time: 2026-11-30 {minute // 60:02}:{minute % 60:02}"),
        part("user", f"User: {USERS[user]}."),
        *(document(number) for number in (*found, *twice)),
        *(tool(name) for name in tools),
        part("system", SYSTEM),
        part("question", f"Question: {question}"),
    ]


def asks(count: int, seed: int) -> list[list[Part]]:
    """Prompts' parts by random topic, user and minute, with all tools in any order and a document found twice."""
    draw, found = Random(seed), []
    for _ in range(count):
        topic, user = draw.randrange(len(TOPICS)), draw.randrange(len(USERS))
        tools, twice = draw.sample(list(TOOLS), len(TOOLS)), [draw.choice(TOPICS[topic][1])]
        found.append(ask(topic, user, draw.randrange(360, 1080), tools=tools, twice=twice))
    return found


def assemble(parts: Sequence[Part]) -> list[str]:
    """The texts of a prompt in the order in which its parts were come by: as such programs begin."""
    return [one["text"] for one in parts]


def prompt(parts: Sequence[Part]) -> str:
    """One text, as `assemble` lays it out, parts between empty lines."""
    return "\n\n".join(assemble(parts))
