"""What `workbench bench gpu` times: contenders of a case compute the same, of the bytes and FLOPs that are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from workbench.measure.gpu import cases, latent_cases, paged_cases
from workbench.measure.gpu.scale import Scale
from workbench.measure.gpu.scattered import Requests

TINY = Scale("cpu", tiny=True)


def agree(group: str, wanted: Callable[[str], bool]) -> int:
    """How many contenders were compared with ours."""
    compared = 0
    for case in cases.cases(group, TINY):
        calls = case.make()
        ours = calls.pop(cases.OURS)()
        for contender, call in calls.items():
            if wanted(contender):
                compared, found = compared + 1, call()
                if found.ndim == 4:  # torch's has heads before queries
                    found = found.transpose(1, 2)
                told = f"{case.name}: {contender}"
                torch.testing.assert_close(found.reshape(ours.shape), ours, atol=1e-5, rtol=1e-5, msg=told)
    return compared


@pytest.mark.parametrize(("group", "others"), [("paged", 4), ("latent", 3)])
def test_contenders_compute_the_same(group: str, others: int) -> None:
    assert agree(group, lambda contender: "flex" not in contender) == others


@pytest.mark.slow
def test_flex_computes_the_same() -> None:
    """Without a compiler; torch's own takes long to import."""
    assert agree("paged", lambda contender: "flex" in contender) == 2


def test_who_stands_beside_ours() -> None:
    decode, chunk, shared = (set(case.make()) for case in cases.cases("paged", TINY))
    assert decode == {"workbench", "sdpa, gathered before", "flex, gathered before"}
    assert chunk == decode - {"flex, gathered before"} and shared == decode | {"workbench, not cascade"}


@pytest.mark.parametrize("group", ["paged", "latent"])
def test_names_are_unique_and_a_quick_run_is_a_part(group: str) -> None:
    whole, quick = ([case.name for case in cases.cases(group, Scale("cuda", quick=few))] for few in (False, True))
    assert len(set(whole)) == len(whole) and set(quick) < set(whole) and quick[0] == whole[0]


def test_work_by_hand() -> None:
    """Llama-3.1-8B: 4 KiB a token and layer in 16 bits. DeepSeek-V3: 576 numbers a token, 128 heads."""
    paged = {case.name: case for case in paged_cases.cases(Scale("cuda"))}
    decode = paged["decode llama-3.1-8b 32 × 4096"]
    assert decode.bytes == 32 * 4096 * 4096 + 2 * 32 * 32 * 128 * 2
    assert decode.flops == 4 * 32 * 4096 * 32 * 128
    assert paged["shared head llama-3.1-8b 64 × (8192 + 512)"].bytes == 40960 * 4096 + 2 * 64 * 32 * 128 * 2
    latent = {case.name: case for case in latent_cases.cases(Scale("cuda"))}
    assert latent["latent decode deepseek-v3 1 × 32768"].bytes == 2 * (32768 * 576 + 128 * (576 + 512))
    assert latent["latent decode deepseek-v3 1 × 32768"].flops == 2 * 32768 * 128 * (576 + 512)
    bound = latent["latent decode deepseek-v2-lite 32 × 4096"]
    assert bound.flops < 100 * bound.bytes, "its goal is a share of the copy bandwidth"


def test_scattered_requests() -> None:
    requests = Requests(3, 20, 5)
    tables, mask = requests.tables(TINY), requests.mask(TINY)
    assert sorted(tables.flatten().tolist()) == list(range(6)) and tables.flatten().tolist() != list(range(6))
    assert mask is not None and mask.sum() * 3 == requests.scores == 3 * (16 + 17 + 18 + 19 + 20)
