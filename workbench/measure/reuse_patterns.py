"""Prompts that tell eviction policies apart: scans between shared heads, heads that go out of use, a loop. No torch.

They are asked one after the other (`Workload.with_users`). What a policy keeps of them is its affair.
"""

from __future__ import annotations

from workbench.measure.shared_heads import at_least
from workbench.measure.workload import Ask, Piece, Workload


def scans(rounds: int, num_heads: int, head_len: int, scan_len: int, question_len: int, seed: int) -> Workload:
    """Each head is asked for twice; then, round after round, one of them and after it a long prompt that comes once."""
    at_least(1, rounds=rounds, num_heads=num_heads, head_len=head_len, scan_len=scan_len, question_len=question_len)
    heads = [number // 2 for number in range(2 * num_heads)] + [number % num_heads for number in range(rounds)]
    asks: list[Ask] = []
    for number, head in enumerate(heads):
        asks.append(_about(f"head {head}", head_len, number, question_len))
        if number >= 2 * num_heads:
            asks.append(Ask((Piece(f"scan {number}", scan_len),), 1))
    return _one_user(asks, seed, "scans", rounds=rounds, num_heads=num_heads, head_len=head_len, scan_len=scan_len)


def news(days: int, per_day: int, num_heads: int, head_len: int, question_len: int, seed: int) -> Workload:
    """Every day has heads of its own, asked for in turn; those of the day before are never asked for again."""
    at_least(1, days=days, per_day=per_day, num_heads=num_heads, head_len=head_len, question_len=question_len)
    asks = [
        _about(f"day {number // per_day}, head {number % num_heads}", head_len, number, question_len)
        for number in range(days * per_day)
    ]
    return _one_user(asks, seed, "news", days=days, per_day=per_day, num_heads=num_heads, head_len=head_len)


def loop(rounds: int, num_heads: int, head_len: int, question_len: int, seed: int) -> Workload:
    """The same heads in the same order, again and again."""
    at_least(1, rounds=rounds, num_heads=num_heads, head_len=head_len, question_len=question_len)
    asks = [
        _about(f"head {number % num_heads}", head_len, number, question_len) for number in range(rounds * num_heads)
    ]
    return _one_user(asks, seed, "loop", rounds=rounds, num_heads=num_heads, head_len=head_len)


def _about(head: str, head_len: int, number: int, question_len: int) -> Ask:
    return Ask((Piece(head, head_len), Piece(f"question {number}", question_len)), 1)


def _one_user(asks: list[Ask], seed: int, kind: str, **sizes: int) -> Workload:
    return Workload(tuple(asks), seed, {"kind": kind, "num_prompts": len(asks), **sizes, "seed": seed}).with_users(1)
