"""Each small operation against its formula written out once more, in float64; and what a maker's name may be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernels
from kernels.reference.int4_tiles import int4_tiles
from kernels.reference.weights import float_weight
from kernels.triton import launch


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 8), (5, 64), (3, 4, 24), (0, 8)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight = 3 * drawn(*shape), drawn(shape[-1], seed=1)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-3), expected.float())


def test_rms_norm_of_zeros_is_kept_finite_by_eps() -> None:
    assert kernels.rms_norm(torch.zeros(2, 4), torch.ones(4), 1e-5).tolist() == [[0.0] * 4] * 2


@pytest.mark.parametrize("heads", [1, 5])
def test_rotary_embedding_turns_each_pair_by_its_angle(heads: int) -> None:
    tokens, head_dim = 6, 10
    half = head_dim // 2
    x, angles = drawn(tokens, heads, head_dim), drawn(tokens, half, seed=1)
    expected = torch.empty(tokens, heads, head_dim, dtype=torch.float64)
    for t in range(tokens):
        for i in range(half):
            a, b, angle = x[t, :, i].double(), x[t, :, i + half].double(), angles[t, i].item()
            expected[t, :, i] = a * math.cos(angle) - b * math.sin(angle)
            expected[t, :, i + half] = b * math.cos(angle) + a * math.sin(angle)
    kernels.rotary_embedding(x, angles.cos(), angles.sin())
    torch.testing.assert_close(x, expected.float())


def test_rotary_embedding_writes_through_a_view_and_nowhere_else() -> None:
    """The decoder hands over the query and key heads as a slice of one larger tensor."""
    qkv, angles = drawn(4, 7, 8), drawn(4, 4, seed=1)
    before = qkv.clone()
    alone = qkv[:, :5].clone()
    kernels.rotary_embedding(alone, angles.cos(), angles.sin())
    kernels.rotary_embedding(qkv[:, :5], angles.cos(), angles.sin())
    assert torch.equal(qkv[:, :5], alone) and torch.equal(qkv[:, 5:], before[:, 5:])
    assert not torch.equal(alone, before[:, :5])


@pytest.mark.parametrize("tokens", [1, 7])
def test_silu_mul(tokens: int) -> None:
    gate_up = 4 * drawn(tokens, 12)
    gate, up = gate_up.double()[:, :6], gate_up.double()[:, 6:]
    torch.testing.assert_close(kernels.silu_mul(gate_up), (gate / (1 + (-gate).exp()) * up).float())


@pytest.mark.parametrize("block_size", [1, 4])
def test_write_kv_writes_its_slots_and_no_other(block_size: int) -> None:
    blocks, heads, head_dim = 6, 3, 4
    cache = drawn(blocks, block_size, 2, heads, head_dim)
    before = cache.clone()
    slots = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(1))[: blocks * block_size // 2]
    kv = drawn(len(slots), 2, heads, head_dim, seed=2)
    kernels.write_kv(kv, cache, slots)
    for block in range(blocks):
        for row in range(block_size):
            where = (slots == block * block_size + row).nonzero().flatten().tolist()
            assert torch.equal(cache[block, row], kv[where[0]] if where else before[block, row])


@pytest.mark.parametrize("slots", [[-1, 5, -1, 0], [-1, -1], [0, -1], []])
def test_write_kv_writes_nothing_for_a_slot_below_zero(slots: list[int]) -> None:
    cache = drawn(2, 4, 2, 3, 4)
    expected, kv = cache.clone(), drawn(len(slots), 2, 3, 4, seed=2)
    for row, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // 4, slot % 4] = kv[row]
    kernels.write_kv(kv, cache, torch.tensor(slots, dtype=torch.int64))
    assert torch.equal(cache, expected)


def test_write_kv_converts_to_the_cache_s_dtype() -> None:
    cache = torch.zeros(2, 2, 2, 1, 4, dtype=torch.bfloat16)
    kv = drawn(1, 2, 1, 4)
    kernels.write_kv(kv, cache, torch.tensor([3]))
    assert torch.equal(cache[1, 1], kv[0].bfloat16())


OPERATIONS = [
    "embedding", "expanded_latent_attention", "flash_attention", "linear", "matmul", "merge_states", "rms_norm",
    "rotary_embedding", "rope_and_write", "silu_mul", "softmax", "w4a16_linear", "write_kv", "paged_attention",
    "paged_latent_attention", "route", "sample",
]  # fmt: skip
ONE = torch.ones(1, 2, 2)
CALLS = {
    "embedding": lambda maker: kernels.embedding(float_weight(ONE[0]), torch.tensor([1]), maker=maker),
    "expanded_latent_attention": lambda maker: kernels.expanded_latent_attention(
        torch.ones(1, 1, 8),
        torch.zeros(1, 1, 6),
        torch.tensor([[0]]),
        [0, 1],
        [1],
        torch.ones(1, 6, 4),
        torch.ones(1, 3, 4),
        scale=1.0,
        maker=maker,
    ),
    "flash_attention": lambda maker: kernels.flash_attention(
        ONE,
        ONE,
        ONE,
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
        scale=1.0,
        maker=maker,
    ),
    "merge_states": lambda maker: kernels.merge_states(ONE, ONE[..., 0], ONE, ONE[..., 0], maker=maker),
    "linear": lambda maker: kernels.linear(ONE[0], float_weight(ONE[0]), maker=maker),
    "matmul": lambda maker: kernels.matmul(torch.ones(1, 32), torch.ones(32, 2), maker=maker),
    "rope_and_write": lambda maker: kernels.rope_and_write(
        torch.ones(1, 6),
        torch.tensor([0]),
        torch.ones(2, 1),
        torch.ones(2, 1),
        torch.tensor([0]),
        torch.zeros(1, 1, 2, 1, 2),
        maker=maker,
    ),
    "rms_norm": lambda maker: kernels.rms_norm(ONE, torch.ones(2), 1e-5, maker=maker),
    "rotary_embedding": lambda maker: kernels.rotary_embedding(ONE.clone(), ONE[:, 0, :1], ONE[:, 0, :1], maker=maker),
    "silu_mul": lambda maker: kernels.silu_mul(ONE, maker=maker),
    "softmax": lambda maker: kernels.softmax(ONE, maker=maker),
    "w4a16_linear": lambda maker: kernels.w4a16_linear(
        torch.ones(1, 32, dtype=torch.float16), int4_tiles(torch.ones(2, 32), torch.ones(2, 1), None, 32), maker=maker
    ),
    "write_kv": lambda maker: kernels.write_kv(
        torch.ones(1, 2, 1, 2), torch.zeros(1, 1, 2, 1, 2), torch.tensor([0]), maker=maker
    ),
    "paged_attention": lambda maker: kernels.paged_attention(
        torch.ones(1, 1, 8), torch.zeros(1, 1, 2, 1, 8), torch.tensor([[0]]), [0, 1], [1], scale=1.0, maker=maker
    ),
    "paged_latent_attention": lambda maker: kernels.paged_latent_attention(
        torch.ones(1, 1, 8), torch.zeros(1, 1, 8), torch.tensor([[0]]), [0, 1], [1], rank=6, scale=1.0, maker=maker
    ),
    "route": lambda maker: kernels.route(ONE[0], experts_per_token=1, maker=maker),
    "sample": lambda maker: kernels.sample(torch.ones(1, 4), [1.0], [0], [1.0], [0.0], [0.5], maker=maker),
}


@pytest.mark.parametrize("op", OPERATIONS)
def test_makers_by_name(op: str) -> None:
    for maker in ["auto", *kernels.available(op)]:
        CALLS[op](maker)
    with pytest.raises(ValueError, match=f"{op}: maker 'cuda' is no maker; makers are auto, reference, triton, cpu"):
        CALLS[op]("cuda")
    for maker in set(kernels.MAKERS) - set(kernels._OPERATIONS[op]):
        with pytest.raises(ValueError, match=f"{op}: maker '{maker}' is not built for it yet"):
            CALLS[op](maker)


def test_auto_takes_the_definition_for_what_the_kernels_refuse() -> None:
    """Heads of 12 numbers, activations of 16 bits: refused by name, computed by auto."""
    q, cache, one = torch.ones(1, 1, 12), torch.zeros(1, 1, 2, 1, 12), torch.tensor([[0]])
    assert kernels.paged_attention(q, cache, one, [0, 1], [1], scale=1.0).shape == q.shape
    if "cpu" in kernels.available("paged_attention"):
        with pytest.raises(ValueError, match="head_dim=12"):
            kernels.paged_attention(q, cache, one, [0, 1], [1], scale=1.0, maker="cpu")
    half = torch.ones(2, 8, dtype=torch.float16)
    assert kernels.silu_mul(half).dtype is kernels.rms_norm(half, half[0], 1e-5).dtype is torch.float16


NAMED = {"linear": "matmul", "flash_attention": "attention"}
"""Operations that share their refusals with others."""


@pytest.mark.parametrize("op", [op for op in OPERATIONS if "triton" in kernels._OPERATIONS[op]])
def test_triton_says_where_it_runs(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "interpreted", lambda: False)
    with pytest.raises(ValueError, match=f"(?s){NAMED.get(op, op)} in Triton: .*TRITON_INTERPRET=1"):
        CALLS[op]("triton")


def test_auto_on_a_gpu_takes_triton_unless_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told that a tensor of this CPU lies on a GPU, it takes the kernel that a GPU would run."""
    taken = []
    monkeypatch.setattr(launch, "suits", lambda x: True)
    monkeypatch.setattr(kernels, "_function", lambda op, maker: taken.append(maker) or (lambda *_, **__: ONE))
    ops = (
        "flash_attention", "matmul", "merge_states", "rms_norm", "rope_and_write", "silu_mul", "softmax",
        "w4a16_linear", "sample",
    )  # fmt: skip
    for op in ops:
        CALLS[op]("auto")
    assert taken == ["triton"] * len(ops)
    kernels.softmax(torch.ones(2, 2, dtype=torch.float64))
    assert taken[-1] == "reference"


def test_an_unknown_operation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown operation 'convolution'; there are embedding, "):
        kernels.available("convolution")


def test_every_operation_is_in_the_list() -> None:
    assert list(kernels._OPERATIONS) == OPERATIONS


def test_front_and_makers_have_one_signature() -> None:
    """The front adds ``maker`` to the definition and nothing else. Other makers agree in names, order, kinds and
    defaults, take at least its types, and may have keywords of their own behind (how to compute, not what)."""
    made = {op: {maker: kernels._function(op, maker) for maker in kernels._OPERATIONS[op]} for op in OPERATIONS}
    assert not [op for op in OPERATIONS if signatures_differ(getattr(kernels, op), made[op])]

    def front(q: list[int], *, window: int | None = None, maker: str = "auto") -> None: ...
    def default(q: list[int], *, window: int | None = 1) -> None: ...
    def wider(q: list[int] | torch.Tensor, *, window: int | None = None) -> None: ...
    def narrower(q: list[int], *, window: int = None) -> None: ...  # noqa: RUF013
    def renamed(k: list[int], *, window: int | None = None) -> None: ...
    def positional(q: list[int], window: int | None = None) -> None: ...
    def tuned(q: list[int], *, window: int | None = None, tile: int | None = None) -> None: ...
    def demanding(q: list[int], *, window: int | None = None, tile: int) -> None: ...
    def shorter(q: list[int]) -> None: ...

    makers = {"default": default, "wider": wider, "narrower": narrower, "renamed": renamed, "positional": positional}
    makers |= {"tuned": tuned, "demanding": demanding, "shorter": shorter}
    assert signatures_differ(front, makers) == ["default", "narrower", "renamed", "positional", "demanding", "shorter"]
    assert signatures_differ(front, {"reference": wider}) == ["reference"], "the definition itself must be told exactly"


def signatures_differ(front: Callable[..., Any], makers: dict[str, Callable[..., Any]]) -> list[str]:
    """The makers whose signature is not the front's without ``maker``."""
    told = inspect.signature(front)
    assert told.parameters["maker"].default == "auto" and told.parameters["maker"].kind.name == "KEYWORD_ONLY"
    rest = told.replace(parameters=[one for name, one in told.parameters.items() if name != "maker"])
    return [name for name, maker in makers.items() if not agrees(inspect.signature(maker), rest, name == "reference")]


def agrees(maker: inspect.Signature, front: inspect.Signature, exactly: bool) -> bool:
    if exactly:
        return maker == front
    pairs = list(zip(maker.parameters.values(), front.parameters.values(), strict=False))
    own = list(maker.parameters.values())[len(front.parameters) :]
    return (
        len(pairs) == len(front.parameters)
        and all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in own)
        and maker.return_annotation == front.return_annotation
        and all((own.name, own.kind, own.default) == (one.name, one.kind, one.default) for own, one in pairs)
        and all(set(one.annotation.split(" | ")) <= set(own.annotation.split(" | ")) for own, one in pairs)
    )
