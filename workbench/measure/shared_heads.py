"""Workloads whose prompts begin alike: groups under one system prompt, chats of several turns, RAG. No torch.

What they share is decided here and nowhere else: by the names of pieces. How much of it an engine reuses is its affair.
"""

from __future__ import annotations

import heapq
import math
import random

from workbench.errors import UsageError
from workbench.measure.lengths import Lengths, described, zipf_weights
from workbench.measure.workload import Answer, Ask, Piece, Workload


def groups(num_prompts: int, num_groups: int, head_len: int, tails: Lengths, outputs: Lengths, seed: int) -> Workload:
    """Each prompt is the head of its group, ``head_len`` tokens, and a tail of its own.

    Prompts go round the groups and are then shuffled, so every group has as many prompts as the others, give or take
    one, and none comes all at once (vLLM's ``prefix_repetition``).
    """
    at_least(1, num_prompts=num_prompts, num_groups=num_groups, head_len=head_len)
    draw = random.Random(seed)
    order = [index % num_groups for index in range(num_prompts)]
    draw.shuffle(order)
    asks = tuple(
        Ask((Piece(f"group {group}", head_len), Piece(f"own {index}", tails.draw(draw))), outputs.draw(draw))
        for index, group in enumerate(order)
    )
    return Workload(asks, seed, {
        "kind": "prefix_repetition", "num_prompts": num_prompts, "num_groups": num_groups, "head_len": head_len,
        "input_len": described(tails), "output_len": described(outputs), "seed": seed,
    })  # fmt: skip


def chat(
    num_users: int, turns: int, system_len: int, questions: Lengths, outputs: Lengths, seed: int, think_time: float = 0
) -> Workload:
    """Each user's prompt is the whole talk so far: system prompt, question, answer, question, …

    All users share the system prompt. The answers in a prompt are those that the engine gave, so a turn is sent
    ``think_time`` seconds after the answer before it. Requests are listed turn by turn.
    """
    at_least(1, num_users=num_users, turns=turns)
    at_least(0, system_len=system_len, think_time=think_time)
    draw = random.Random(seed)
    system = (Piece("system", system_len),) if system_len else ()
    asks: list[Ask] = []
    for turn in range(turns):
        for user in range(num_users):
            question = Piece(f"user {user} turn {turn}", questions.draw(draw))
            if turn == 0:
                asks.append(Ask((*system, question), outputs.draw(draw)))
            else:
                before = len(asks) - num_users
                talk = (*asks[before].pieces, Answer(before), question)
                asks.append(Ask(talk, outputs.draw(draw), arrival=think_time, after=before))
    return Workload(tuple(asks), seed, {
        "kind": "chat", "num_prompts": len(asks), "num_users": num_users, "turns": turns, "system_len": system_len,
        "think_time": think_time, "input_len": described(questions), "output_len": described(outputs),
        "seed": seed,
    })  # fmt: skip


def rag(
    num_prompts: int,
    num_documents: int,
    document_len: int,
    per_prompt: int,
    questions: Lengths,
    outputs: Lengths,
    seed: int,
    alpha: float = 1.0,
    sort: bool = False,
) -> Workload:
    """Each prompt holds ``per_prompt`` different documents of a library, then its question.

    Document k is asked for in proportion to 1 / k^alpha. They stand in the order in which they were found, which is
    another one each time, or sorted by number: then prompts with the same documents begin alike.
    """
    at_least(1, num_prompts=num_prompts, num_documents=num_documents, document_len=document_len, per_prompt=per_prompt)
    if per_prompt > num_documents:
        raise UsageError(f"{per_prompt} documents a prompt are more than the {num_documents} there are")
    draw = random.Random(seed)
    weights = zipf_weights(alpha, num_documents)
    asks = []
    for index in range(num_prompts):
        # A race of exponential clocks: who rings first is drawn by weight, who rings next by the weights that are left.
        rings = [draw.expovariate(weight) if weight else math.inf for weight in weights]
        found = heapq.nsmallest(per_prompt, range(num_documents), key=rings.__getitem__)
        documents = [Piece(f"document {number}", document_len) for number in (sorted(found) if sort else found)]
        asks.append(Ask((*documents, Piece(f"own {index}", questions.draw(draw))), outputs.draw(draw)))
    return Workload(tuple(asks), seed, {
        "kind": "rag", "num_prompts": num_prompts, "num_documents": num_documents, "document_len": document_len,
        "per_prompt": per_prompt, "alpha": alpha, "order": "sorted" if sort else "found",
        "input_len": described(questions), "output_len": described(outputs), "seed": seed,
    })  # fmt: skip


def at_least(low: int, **values: float) -> None:
    """Raises UsageError for the first value below ``low``."""
    for name, value in values.items():
        if not value >= low:
            raise UsageError(f"{name}={value} must be at least {low}")
