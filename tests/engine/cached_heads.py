"""What a prefix cache may know, by brute force: every head of whole blocks that some request has computed.

It never forgets, so it bounds what an engine may find; as long as an engine has given nothing up, it must find just
that.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engine.request import Request


class CachedHeads:
    def __init__(self, block_size: int, partial: bool = False) -> None:
        self.block_size = block_size
        self.partial = partial
        self.heads: dict[tuple[str, tuple[int, ...]], None] = {}

    def computed(self, salt: str, token_ids: Sequence[int]) -> None:
        """A request of this salt has the KV of just these tokens, and may share it."""
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            self.heads[salt, tuple(token_ids[:end])] = None

    def longest(self, salt: str, token_ids: Sequence[int]) -> int:
        """Tokens of the longest head that is known; ``partial``: and of those a known block goes on with."""
        end = 0
        while end + self.block_size <= len(token_ids):
            if (salt, tuple(token_ids[: end + self.block_size])) not in self.heads:
                break
            end += self.block_size
        if self.partial:
            head = tuple(token_ids[:end])
            after = [said for of, said in self.heads if of == salt and said[:end] == head]
            end = max([end, *(common(said, token_ids) for said in after if len(said) == end + self.block_size)])
        return end

    def forget(self) -> None:
        self.heads.clear()


def is_warmed(request: Request, running: Sequence[Request], start: int) -> bool:
    """Whether one that runs is about to compute more of what ``request`` begins with than the ``start`` tokens that are
    cached."""
    return any(
        common(request.token_ids, other.token_ids) > max(start, other.num_computed_tokens)
        for other in running
        if other.cache_salt == request.cache_salt
    )


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
