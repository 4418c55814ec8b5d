"""The lens on paged attention: what it shows against attention worked out densely, key by key."""

from __future__ import annotations

import pytest
import torch

from kernels.reference import merge_states
from kernels.triton import paged_attention as kernel
from workbench.errors import UsageError
from workbench.lab.paged_lens import (
    PagedStep,
    against_one_piece,
    attended,
    by_definition,
    cascaded,
    heads_of,
    paged_step,
    plan_of,
    same_bits_alone,
    split_states,
    weights_of,
)

LENGTHS = [100, 37, 260]


def keys_of(step: PagedStep, request: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a request, fetched one by one through its table; a KV head for each query head."""
    group = step.q.shape[1] // step.cache.shape[3]
    rows = [
        step.cache[int(step.tables[request, i // step.block_size]), i % step.block_size]
        for i in range(step.seq_lens[request])
    ]
    keys, values = torch.stack(rows).double().repeat_interleave(group, 2).unbind(1)
    return keys, values


def dense(step: PagedStep, request: int, begin: int = 0, end: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of a request's query to some of its keys, and the log-sum-exp, in float64."""
    keys, values = (part[begin:end] for part in keys_of(step, request))
    scores = torch.einsum("hd,khd->hk", step.q[request].double(), keys) * step.scale
    return torch.einsum("hk,khd->hd", scores.softmax(1), values), scores.logsumexp(1)


@pytest.mark.parametrize("block_size", [1, 16, 17, 260])
def test_definition_and_kernel_find_every_token(block_size: int) -> None:
    step = paged_step(LENGTHS, block_size=block_size)
    expected = torch.stack([dense(step, b)[0] for b in range(3)])
    torch.testing.assert_close(by_definition(step), expected)
    torch.testing.assert_close(attended(step).double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(attended(step, num_sms=132).double(), expected, atol=1e-6, rtol=1e-5)
    assert plan_of(step, num_sms=132).num_splits > 1 == plan_of(step).num_splits


def test_blocks_are_each_requests_own_and_scattered() -> None:
    step = paged_step(LENGTHS)
    used = [step.tables[b, : -(-n // 16)].tolist() for b, n in enumerate(LENGTHS)]
    flat = [block for table in used for block in table]
    assert sorted(flat) == list(range(len(step.cache))) and used[2] != sorted(used[2])
    shared = paged_step([64, 80], shared=48)
    assert shared.tables[0, :3].tolist() == shared.tables[1, :3].tolist() and shared.tables[0, 3] != shared.tables[1, 3]


def test_states_are_attention_to_their_own_keys() -> None:
    step = paged_step([260])
    states, merged = split_states(step, 64)
    assert len(states) == 5
    for number, state in enumerate(states):
        out, lse = dense(step, 0, 64 * number, 64 * (number + 1))
        torch.testing.assert_close(state.out.double(), out, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(state.lse.double(), lse, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(merged.double(), dense(step, 0)[0], atol=1e-6, rtol=1e-5)
    assert sum(weights_of(states)) == pytest.approx(1)
    out = sum(w * state.out[1] for w, state in zip(weights_of(states, 1), states, strict=True))
    torch.testing.assert_close(out, merged[1], atol=1e-6, rtol=1e-5)


def test_the_kernels_own_merge_is_back_afterwards() -> None:
    own = kernel.merge_splits
    split_states(paged_step([130]), 64)
    assert kernel.merge_splits is own
    for step in (paged_step([64]), paged_step([130, 130])):
        with pytest.raises(UsageError, match="give one request, longer than a split"):
            split_states(step, 64)


def test_fixed_splits_keep_their_bits_and_even_ones_do_not() -> None:
    step = paged_step([100, 37, 300])
    assert all(same_bits_alone(step, split_size=64))
    assert not all(same_bits_alone(step, num_sms=16))


def test_a_shared_head_is_found_and_changes_nothing() -> None:
    step = paged_step([100, 90, 140], shared=64)
    (head,) = heads_of(step)
    assert sorted(head.requests) == [0, 1, 2] and head.num_blocks == 4
    torch.testing.assert_close(cascaded(step, [head]), attended(step), atol=1e-6, rtol=1e-5)
    assert heads_of(paged_step([100, 90])) == []
    with pytest.raises(UsageError, match="whole blocks of 16"):
        paged_step([100], shared=40)


def test_states_in_any_order_merge_to_the_same() -> None:
    step = paged_step([260])
    states, merged = split_states(step, 64)
    for order in (states, states[::-1], states[2:] + states[:2]):
        out, lse = order[0].out[None], order[0].lse[None]
        for one in order[1:]:
            out, lse = merge_states(out, lse, one.out[None], one.lse[None])
        torch.testing.assert_close(out[0], merged, atol=1e-6, rtol=1e-5)


def test_time_against_one_piece_names_the_sizes() -> None:
    found = against_one_piece((16, 4), 64)
    assert [*found] == [16, 4] and all(times > 0 for times in found.values())
