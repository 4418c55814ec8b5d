"""Bugs put into attention over pages on purpose: each must be caught by the test of the promise that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.triton import (
    attention_walk,
    cascade,
    latent_attention,
    merge_splits,
    paged_attention,
    paged_call,
    paged_plan,
)
from kernels.triton.interpreter import interpreting
from tests.kernels.triton import latent_cases, paged_cases, test_cascade, test_paged_contract
from tests.kernels.triton.latent_cases import Latents
from tests.kernels.triton.paged_cases import Paged
from tests.kernels.triton.planted import Bug, is_caught

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_clean_memory"),
    pytest.mark.skipif(not interpreting(), reason="compiled kernels do not see names that change"),
]

USERS = (
    attention_walk, cascade, latent_attention, merge_splits, paged_attention, paged_call, paged_plan,
    latent_cases, paged_cases, test_cascade, test_paged_contract,
)  # fmt: skip
"""Who calls what a bug may replace."""


def mixed(device: str) -> None:
    """Decodes with one and two queries beside a chunk, in pages of 17, split and whole."""
    case = Paged([(1, 200), (2, 70), (1, 0), (1, 64), (20, 33)], 16, 3, page=17, device=device)
    for splits in test_paged_contract.WAYS:
        case.check(*case.run(splits))


def tail(device: str) -> None:
    """Most of a page is nobody's, and so is all of page 0, if it is not this one."""
    case = Paged([(1, 20)], 16, page=64, device=device)
    case.check(*case.run())


def windowed(device: str) -> None:
    """The window begins inside a split: keys that a fixed split holds are in one split more than there are."""
    case = Paged([(1, 200)], 16, window=64, device=device)
    case.check(*case.run("fixed"))


def unseen(device: str) -> None:
    test_paged_contract.test_a_split_that_one_row_of_a_tile_does_not_see(device)


def nothing(device: str) -> None:
    test_paged_contract.test_no_keys(False, device)


def sinks(device: str) -> None:
    test_paged_contract.test_a_sink_counts_once_however_many_splits(device)


def far(device: str) -> None:
    test_paged_contract.test_page_numbers_do_not_wrap_at_32_bits(1, torch.int32)


def shared(device: str) -> None:
    test_cascade.test_it_equals_attention_of_each_by_itself(None, torch.float32, device)


def latents(device: str) -> None:
    """As `mixed`."""
    case = Latents([(1, 200), (2, 65), (1, 0), (1, 64), (20, 33)], heads=3, page=17, device=device)
    for splits in test_paged_contract.WAYS:
        case.check(*case.run(splits))


def halves(device: str) -> None:
    """Two programs have a half of the result each."""
    case = Latents([(1, 100), (3, 30)], heads=20, rank=512, rope=64, device=device)
    case.check(*case.run())


BUGS = {
    "a page of 17 is read as one of 16": Bug(attention_walk, "(columns % PAGE)", "(columns % 16)", mixed),
    "addresses in 32 bits": Bug(
        attention_walk, "pages.to(tl.int64) * stride_page", "(pages * stride_page).to(tl.int64)", far
    ),
    "a row that has seen nothing": Bug(
        attention_walk, 'shift = tl.where(m_new == float("-inf"), 0.0, m_new)', "shift = m_new", unseen
    ),
    "values past the end are read": Bug(
        attention_walk,
        "values = load_tokens(v, at, inside, HEAD_DIM, PADDED, MASKED)",
        "values = load_tokens(v, at, inside, HEAD_DIM, PADDED, False)",
        tail,
    ),
    "a sink in every split": Bug(paged_attention, "real & (split == 0)", "real", sinks),
    "a split goes on into the next": Bug(
        paged_attention, "highest = tl.minimum(highest, origin + (split + 1) * size)", "pass", mixed
    ),
    "partial results to base e": Bug(
        paged_attention, "    else:\n        log2_sum *=", "    if True:\n        log2_sum *=", mixed
    ),
    "partial results in a neighbour's place": Bug(
        paged_attention, "q_begin = sequence * width", "q_begin = sequence", mixed
    ),
    "chunks decode too": Bug(
        paged_attention, "if (q_len > width) | (first_row", "if (q_len < 0) | (first_row", mixed
    ),
    "splits weigh the same": Bug(merge_splits, "weight = tl.exp2(log2_sum - shift)", "weight = 1.0", mixed),
    "merging nothing": Bug(
        merge_splits, 'shift = tl.where(m_new == float("-inf"), 0.0, m_new)', "shift = m_new", nothing
    ),
    "the last, short split is lost": Bug(
        merge_splits, "tl.cdiv(k_len - origin, size), 1)", "(k_len - origin) // size, 1)", mixed
    ),
    "a split too few within a window": Bug(
        paged_plan, "min(bounds.length, seen + split_size - 1)", "min(bounds.length, seen)", windowed
    ),
    "a shared head is causal": Bug(cascade, "causal=False, softcap", "softcap", shared),
    "a shared head counts sinks": Bug(cascade, "causal=False, softcap", "causal=False, sinks=sinks, softcap", shared),
    "a shared head counts twice": Bug(cascade, "n - skip * block_size for n, skip", "n for n, skip", shared),
    "what follows a head begins with it": Bug(
        cascade, "torch.tensor(skipped, device=device)[:, None]", "0 * torch.tensor(skipped)[:, None]", shared
    ),
    "latents: scores without the rotated part": Bug(
        latent_attention, "s = tl.dot(q_rotated, tl.trans(rotated)", "s = 0 * tl.dot(q_rotated, tl.trans(rotated)",
        latents,
    ),
    "latents: a split goes on into the next": Bug(
        latent_attention, "highest = tl.minimum(highest, lowest + size)", "pass", latents
    ),
    "latents: splits begin anew": Bug(latent_attention, "lowest = split * size", "lowest = 0", latents),
    "latents: a row that has seen nothing": Bug(
        latent_attention, 'shift = tl.where(m_new == float("-inf"), 0.0, m_new)', "shift = m_new", latents
    ),
    "latents: queries see what follows": Bug(
        latent_attention, "columns[None, :] <= own", "columns[None, :] >= 0 * own", latents
    ),
    "latents: partial results to base e": Bug(
        latent_attention, "    else:\n        log2_sum *=", "    if True:\n        log2_sum *=", latents
    ),
    "latents: chunks decode too": Bug(
        latent_attention, "if (q_len > width) | (first_row", "if (q_len < 0) | (first_row", latents
    ),
    "latents: the same half twice in scores": Bug(
        latent_attention, "q_other = load_rows(q + (WIDTH - mine)", "q_other = load_rows(q + mine", halves
    ),
    "latents: both halves in one place": Bug(latent_attention, "store_rows(out + mine", "store_rows(out", halves),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_it_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    assert is_caught(BUGS[name], USERS, tmp_path, monkeypatch, device), "the check passes"


@pytest.mark.parametrize("check", [mixed, tail, windowed, latents, halves])
def test_without_a_bug_the_checks_pass(check: Callable[[str], None], device: str) -> None:
    check(device)
