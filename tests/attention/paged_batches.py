"""Random paged batches with everything a request did not write poisoned, and attention by the plainest formula."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch

import kernels
from workbench.attention.interface import AttentionBatch, Heads


@dataclass
class Case:
    """``requests``: (tokens in the cache, how many of them are this step's queries) each."""

    requests: list[tuple[int, int]]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    window: int | None
    seed: int

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        lengths = [length for length, _ in self.requests]
        needed = [-(-length // self.block_size) for length in lengths]
        # Some blocks belong to nobody, and each request's lie scattered.
        order = torch.randperm(sum(needed) + 3, generator=generator).tolist()
        self.tables = [[order.pop() for _ in range(count)] for count in needed]
        self.keys = [drawn(length, self.num_kv_heads, self.head_dim) for length in lengths]
        self.values = [drawn(length, self.num_kv_heads, self.head_dim) for length in lengths]
        shape = (sum(needed) + 3, self.block_size, 2, self.num_kv_heads, self.head_dim)
        self.written = torch.zeros(shape[:2], dtype=torch.bool)
        self.cache = torch.zeros(shape)
        for table, keys, values in zip(self.tables, self.keys, self.values, strict=True):
            for i, (key, value) in enumerate(zip(keys, values, strict=True)):
                block, row = table[i // self.block_size], i % self.block_size
                self.cache[block, row] = torch.stack((key, value))
                self.written[block, row] = True
        self.q = drawn(sum(queries for _, queries in self.requests), self.num_heads, self.head_dim)
        self.scale = self.head_dim**-0.5
        start = [0]
        for _, queries in self.requests:
            start.append(start[-1] + queries)
        width = max(1, *needed)
        padded = torch.tensor([table + (table[:1] or [0]) * (width - len(table)) for table in self.tables])
        token_bytes = 2 * self.num_kv_heads * self.head_dim * self.cache.itemsize
        starts, seq_lens = (torch.tensor(numbers, dtype=torch.int32) for numbers in (start, lengths))
        self.batch = AttentionBatch(start, lengths, padded, self.block_size, token_bytes, starts, seq_lens)

    @property
    def heads(self) -> Heads:
        return Heads(
            self.num_heads, self.num_kv_heads, self.head_dim, torch.float32, torch.device("cpu"), torch.float32
        )

    def poisoned(self, value: float = float("nan")) -> torch.Tensor:
        """The cache with every row that no request wrote set to ``value``: free blocks and the tails of used ones."""
        cache = self.cache.clone()
        cache[~self.written] = value
        return cache

    def attend(self, maker: str, cache: torch.Tensor | None = None, window: int | None = None) -> torch.Tensor:
        """By one maker of the operation; ``cache`` and ``window`` stand for the case's own."""
        return kernels.paged_attention(
            self.q,
            self.cache if cache is None else cache,
            self.batch.block_tables,
            self.batch.query_start,
            self.batch.seq_lens,
            scale=self.scale,
            window=self.window if window is None else window,
            maker=maker,
        )

    def dense(self) -> torch.Tensor:
        """Query by query and head by head, in float64, from the keys and values themselves: no cache, no blocks."""
        outputs = []
        group = self.num_heads // self.num_kv_heads
        for b, (length, queries) in enumerate(self.requests):
            for i in range(queries):
                own = length - queries + i
                first = 0 if self.window is None else max(0, own - self.window + 1)
                if own < 0:
                    outputs.append(torch.zeros(self.num_heads, self.head_dim, dtype=torch.float64))
                    continue
                row = self.q[self.batch.query_start[b] + i].double()
                heads = []
                for head in range(self.num_heads):
                    keys = self.keys[b][first : own + 1, head // group].double()
                    values = self.values[b][first : own + 1, head // group].double()
                    weights = torch.softmax(keys @ row[head] * self.scale, 0)
                    heads.append(weights @ values)
                outputs.append(torch.stack(heads))
        return torch.stack(outputs).float()


HEADS = [(1, 1), (4, 4), (4, 2), (9, 3), (8, 1), (6, 2)]


def random_case(seed: int, block_size: int | None = None) -> Case:
    """Decodes of many lengths, whole prompts and chunks that continue, mixed in any order."""
    draw = Random(seed)
    requests = []
    for _ in range(draw.randint(1, 6)):
        length = draw.choice([1, 2, draw.randint(1, 20), draw.randint(1, 20), draw.randint(20, 150)])
        queries = draw.choice([1, 1, length, draw.randint(1, min(length, 40))])
        requests.append((length, min(queries, 60)))
    heads, kv_heads = draw.choice(HEADS)
    return Case(
        requests=requests,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=draw.choice([8, 16, 24]),
        block_size=block_size or draw.choice([1, 2, 16, 17]),
        window=draw.choice([None, None, 1, 5, 16, 1000]),
        seed=seed,
    )
