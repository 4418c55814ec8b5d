"""Cascade attention: heads shared by many requests, attended once and merged, against attention of each by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.triton.cascade import CascadePlan, SharedHead, cascade, cascade_plan, shared_heads
from kernels.triton.paged_attention import attend
from kernels.triton.paged_call import Pages, plan_for
from tests.kernels.triton.attention_cases import NAN
from tests.kernels.triton.paged_cases import GARBAGE, Paged

pytestmark = pytest.mark.usefixtures("no_clean_memory")

LENGTHS = [(1, 600), (1, 330), (1, 140), (2, 800), (30, 480), (1, 400)]
PAGE = 64
SHARED = [SharedHead((0, 4, 3), 5), SharedHead((1, 2), 2)]
"""In the order of the batch or not; request 5 shares nothing."""


def sharing(device: str, **options: Any) -> Paged:
    case = Paged(LENGTHS, 32, 3, kv_heads=2, page=PAGE, device=device, **options)
    for requests, num_blocks in SHARED:
        first, *others = requests
        for b in others:
            case.cache[case.used[b][:num_blocks]] = NAN  # nobody's now
            case.tables[b, :num_blocks] = case.tables[first, :num_blocks]
    return case


def planned(case: Paged, num_sms: int | None = None) -> CascadePlan:
    q, device = case.inputs[0], torch.device(case.device)
    pages = Pages(q.shape[1], case.kv_heads, case.head_dim, q.dtype, device)
    return cascade_plan(pages, case.tables, case.page, *case.lists, SHARED, num_sms)


@pytest.mark.parametrize("num_sms", [None, 132])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_equals_attention_of_each_by_itself(num_sms: int | None, dtype: torch.dtype, device: str) -> None:
    """Decodes and a chunk of a prompt, heads split and whole, a softcap, and sinks that count once."""
    case = sharing(device, dtype=dtype, sinks=True, softcap=20.0)
    plan = planned(case, num_sms)
    assert (plan.heads.num_splits > 1) is (plan.rest.num_splits > 1) is (num_sms is not None)
    q = case.inputs[0]
    options = {name: case.options[name] for name in ("scale", "softcap", "sinks")}
    out = cascade(q, case.cache, plan, **options)
    apart = attend(q, case.cache, case.tables, plan_for(q, case.cache, case.tables, *case.lists), **options)
    tolerance = 2e-6 if dtype == torch.float32 else 2**-7
    assert out.dtype == dtype
    torch.testing.assert_close(out, apart, atol=tolerance, rtol=tolerance)
    assert num_sms is not None or torch.equal(out[-1], apart[-1]), "who shares nothing is attended as ever"


def test_a_head_is_read_once(device: str) -> None:
    """By the table of its first member: garbage in its place in the others' changes no bit."""
    case = sharing(device)
    q, plan = case.inputs[0], planned(case)
    expected = cascade(q, case.cache, plan, scale=1.0)
    for requests, num_blocks in SHARED:
        for b in requests[1:]:
            case.tables[b, :num_blocks] = GARBAGE
    assert torch.equal(cascade(q, case.cache, planned(case), scale=1.0), expected)


def test_no_head_is_plain_attention(device: str) -> None:
    case = Paged([(1, 40), (3, 9)], 16, device=device)
    pages = Pages(1, 1, 16, torch.float32, torch.device(device))
    plan = cascade_plan(pages, case.tables, 16, *case.lists, [])
    assert torch.equal(cascade(case.inputs[0], case.cache, plan, scale=case.options["scale"]), case.run()[0])


def test_heads_are_found_in_block_tables() -> None:
    """Whatever saves most: four requests that share one block, or three of them that share two."""
    tables = [[1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 4], [1, 5], [7]]
    given = tables, [0, 1, 2, 3, 4, 5], [64, 64, 48, 32, 16], 16
    assert shared_heads(*given, least_requests=2, least_tokens=16) == [SharedHead((0, 1, 2), 2)]
    assert shared_heads(*given, least_requests=4, least_tokens=16) == [SharedHead((0, 1, 2, 3), 1)]
    assert shared_heads(*given, least_requests=2, least_tokens=33) == [SharedHead((0, 1), 3)]
    assert shared_heads(*given, least_requests=5, least_tokens=1) == []
    assert shared_heads([], [0], [], 16) == []


def test_a_head_ends_before_the_first_query_of_each() -> None:
    """Blocks full of tokens that some query of a member does not see are no head, nor are those of one without any."""
    tables = [[1, 2, 3]] * 5
    options = {"least_requests": 2, "least_tokens": 1}
    assert shared_heads(tables, [0, 1, 2, 3, 4, 5], [48] * 5, 16, **options) == [SharedHead((0, 1, 2, 3, 4), 2)]
    found = shared_heads(tables, [0, 17, 18, 18, 19, 20], [48] * 5, 16, **options)
    assert found == [SharedHead((1, 3, 4), 2)], "request 0 has seen 31 tokens, request 2 asks nothing"


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        ([SharedHead((0, 1), 6)], "request 1: a head of 6 blocks of 64 tokens; its queries all see 329"),
        ([SharedHead((0,), 1), SharedHead((3, 0), 1)], "request 0.* another head already"),
        ([SharedHead((0, 1), 0)], "a head of 0 blocks"),
    ],
)
def test_what_is_no_head_is_refused(shared: list[SharedHead], message: str) -> None:
    case = Paged(LENGTHS, 16, page=PAGE)
    pages = Pages(1, 1, 16, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match=message):
        cascade_plan(pages, case.tables, PAGE, *case.lists, shared)
