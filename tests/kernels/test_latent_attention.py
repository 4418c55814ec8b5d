"""The definitions of latent attention: both ways against the plainest formula in float64, over scattered blocks."""

from __future__ import annotations

from random import Random

import pytest
import torch

import kernels
from kernels.reference import absorb, lift

NOPE, ROPE, RANK, VALUE = 6, 4, 16, 5


class Case:
    """``requests``: (tokens in the cache, how many of them are this step's queries) each."""

    def __init__(self, requests: list[tuple[int, int]], heads: int, block_size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.requests, self.block_size = requests, block_size
        self.key_up = torch.randn(heads, NOPE, RANK, generator=generator) * RANK**-0.5
        self.value_up = torch.randn(heads, VALUE, RANK, generator=generator) * RANK**-0.5
        self.lengths = [length for length, _ in requests]
        needed = [-(-length // block_size) for length in self.lengths]
        order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
        tables = [[order.pop() for _ in range(count)] for count in needed]
        self.cache = torch.full((sum(needed) + 2, block_size, RANK + ROPE), float("nan"))
        self.latents = [torch.randn(length, RANK + ROPE, generator=generator) for length in self.lengths]
        for table, latents in zip(tables, self.latents, strict=True):
            slots = torch.tensor([table[i // block_size] * block_size + i % block_size for i in range(len(latents))])
            kernels.write_kv(latents, self.cache, slots.long())
        width = max(1, *needed)
        garbage = 2_147_480_000  # behind the valid part of a block table
        self.tables = torch.tensor([table + [garbage] * (width - len(table)) for table in tables])
        self.start = [0]
        for _, queries in requests:
            self.start.append(self.start[-1] + queries)
        self.q = torch.randn(self.start[-1], heads, NOPE + ROPE, generator=generator)
        self.scale = 0.37

    def absorbed(self) -> torch.Tensor:
        paged = (self.cache, self.tables, self.start, self.lengths)
        q = absorb(self.q, self.key_up)
        return lift(kernels.paged_latent_attention(q, *paged, rank=RANK, scale=self.scale), self.value_up)

    def expanded(self) -> torch.Tensor:
        paged = (self.cache, self.tables, self.start, self.lengths)
        return kernels.expanded_latent_attention(self.q, *paged, self.key_up, self.value_up, scale=self.scale)

    def dense(self) -> torch.Tensor:
        """Query by query and head by head: keys and values of every token it sees are built for it."""
        rows = []
        for b, (length, queries) in enumerate(self.requests):
            for i in range(queries):
                own = length - queries + i
                q, seen = self.q[self.start[b] + i].double(), self.latents[b][: max(0, own + 1)].double()
                heads = []
                for head in range(q.shape[0]):
                    scores = [
                        q[head, :NOPE] @ (self.key_up[head].double() @ token[:RANK]) + q[head, NOPE:] @ token[RANK:]
                        for token in seen
                    ]
                    values = [self.value_up[head].double() @ token[:RANK] for token in seen]
                    if not scores:
                        heads.append(torch.zeros(VALUE, dtype=torch.float64))
                        continue
                    heads.append(torch.softmax(torch.stack(scores) * self.scale, 0) @ torch.stack(values))
                rows.append(torch.stack(heads))
        return torch.stack(rows).float() if rows else torch.zeros(0, self.q.shape[1], VALUE)


def random_case(seed: int) -> Case:
    draw = Random(seed)
    requests = []
    for _ in range(draw.randint(1, 4)):
        length = draw.choice([1, 2, draw.randint(1, 20), draw.randint(20, 40)])
        requests.append((length, draw.choice([1, length, draw.randint(1, length)])))
    return Case(requests, draw.choice([1, 3, 8]), draw.choice([1, 16, 17]), seed)


@pytest.mark.parametrize("way", [Case.absorbed, Case.expanded])
@pytest.mark.parametrize("seed", range(12))
def test_both_ways_equal_the_formula_and_read_nothing_unwritten(way: object, seed: int) -> None:
    """Free blocks and unwritten tails hold NaN, block tables end in garbage."""
    case = random_case(seed)
    torch.testing.assert_close(way(case), case.dense(), atol=1e-5, rtol=1e-5)  # type: ignore[operator]


@pytest.mark.parametrize("way", [Case.absorbed, Case.expanded])
def test_empty_requests_and_queries_that_see_nothing_give_zeros(way: object) -> None:
    case = Case([(0, 0), (5, 0), (0, 2), (3, 5), (4, 1)], 2, 4, seed=1)
    out = way(case)  # type: ignore[operator]
    torch.testing.assert_close(out, case.dense(), atol=1e-5, rtol=1e-5)
    assert not out[:4].any() and out[4:].abs().amin(dim=(1, 2)).gt(0).all()


def test_rotation_of_neighbours_is_that_of_halves_with_channels_sorted() -> None:
    x, angles = torch.randn(5, 3, 8), torch.randn(5, 4)
    apart = torch.cat((x[..., ::2], x[..., 1::2]), -1)
    kernels.rotary_embedding(x, angles.cos(), angles.sin(), interleaved=True)
    kernels.rotary_embedding(apart, angles.cos(), angles.sin())
    torch.testing.assert_close(torch.cat((x[..., ::2], x[..., 1::2]), -1), apart)
