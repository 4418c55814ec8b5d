"""The choice of tokens in Triton: the definition's tokens, with the same random numbers, without a sort."""

from __future__ import annotations

from random import Random

import pytest
import torch

import kernels
from kernels.triton import sampling
from tests.kernels.test_sample import LAST_NUMBER, Options, by_definition, random_case

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small vocabularies are of several blocks."""
    monkeypatch.setattr(sampling, "LARGEST_BLOCK", 32)


def unlike(
    logits: torch.Tensor, options: Options, device: str, change: float = 0.0
) -> tuple[int, int]:  # fmt: skip
    """How many of so many rows are decided differently from the definition, other than on a border; ``change``: of the
    kernel's random numbers."""
    changed = options._replace(u=[min(u + change, LAST_NUMBER) for u in options.u])
    chosen = kernels.sample(logits.to(device), *changed, maker="triton").tolist()
    wrong, compared = 0, 0
    for row, (token, *one) in enumerate(zip(chosen, *options, strict=True)):
        expected, margin = by_definition(logits.double()[row].tolist(), *one)
        compared += margin > 1e-12
        wrong += margin > 1e-12 and token != expected
    return wrong, compared


@pytest.mark.gpu_quick
@pytest.mark.parametrize("seed", range(3))
def test_draws_what_is_defined(seed: int, device: str) -> None:
    draw, compared = Random(seed), 0
    for _ in range(3):
        wrong, told = unlike(*random_case(draw, (2, 7, 33, 50), rows=4), device)
        compared += told
        assert wrong == 0
    assert compared >= 6


@pytest.mark.proof
def test_draws_what_is_defined_in_many_cases(device: str, proof) -> None:
    draw, compared = Random(100), 0
    for _ in range(60):
        wrong, told = unlike(*random_case(draw, (2, 9, 50, 200), rows=20), device)
        compared += told
        assert wrong == 0
    proof.report("Triton draws the definition's tokens", f"{compared} of {compared}, the rest on a border")


def test_the_comparison_tells_slightly_wrong_numbers(device: str) -> None:
    logits, options = torch.zeros(8, 60), Options.alike(8)
    assert unlike(logits, options, device)[0] == 0 < unlike(logits, options, device, change=0.02)[0]


def test_a_whole_vocabulary(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LARGEST_BLOCK", 2048)
    logits = 4 * torch.randn(3, 9_000, generator=torch.Generator().manual_seed(1))
    options = Options([0.0, 1.0, 0.8], [0, 0, 50], [1.0, 1.0, 0.9], [0.0, 0.0, 0.01], [0.3] * 3)
    expected = kernels.sample(logits, *options, maker="reference")
    assert torch.equal(kernels.sample(logits.to(device), *options, maker="triton").cpu(), expected)


def test_the_boundary_token_of_top_p_is_kept(device: str) -> None:
    """0.5 + 0.25 reaches 0.6 with the second token, and that one stays; 0.5 reaches 0.5 without it."""
    logits = torch.tensor([0.125, 0.5, 0.25, 0.125]).log().expand(3, 4)
    options = Options([1.0] * 3, [0] * 3, [0.6, 0.5 - 1e-9, 0.76], [0.0] * 3, [LAST_NUMBER] * 3)
    chosen = kernels.sample(logits.contiguous().to(device), *options, maker="triton")
    assert chosen.tolist() == [2, 1, 0]


def test_ties_go_to_the_first(device: str) -> None:
    """Equal logits across blocks: filters keep the first of them."""
    logits = torch.zeros(2, 100, device=device)
    for filters, last in (({"top_k": 40}, 39), ({"top_p": 0.405}, 40), ({"min_p": 0.5}, 99), ({"top_p": 1e-300}, 0)):
        options = Options.alike(2, **filters)._replace(u=[0.505, LAST_NUMBER])
        chosen = kernels.sample(logits, *options, maker="triton").tolist()
        assert chosen == [int(0.505 * (last + 1)), last], filters


def test_logits_that_only_rounding_makes_equally_far(device: str) -> None:
    """30 minus a number near 1e-22 is 30 in float64: such columns rank by their place, not by their logits."""
    logits = torch.zeros(1, 60)
    logits[0, :59] = torch.arange(59.0) * 1e-22
    logits[0, 59] = 30.0
    options = Options.alike(1, temperature=100.0, top_k=4)._replace(u=[LAST_NUMBER])
    assert kernels.sample(logits, *options, maker="reference").item() == 2
    assert kernels.sample(logits.to(device), *options, maker="triton").item() == 2


@pytest.mark.gpu_quick
def test_greedy_takes_the_first_of_the_largest_as_argmax_does(device: str) -> None:
    rows = [[1.0, NAN, 5.0, NAN], [-INF] * 4, [-0.0, 0.0, 0.0, -1.0], [1.0, INF, INF, NAN], [-INF, -3.0, -3.0, -INF]]
    for pad in (0, 45):  # of one block and of several
        logits = torch.cat([torch.full((len(rows), pad), -INF), torch.tensor(rows)], 1)
        chosen = kernels.sample(logits.to(device), *Options.alike(len(rows), temperature=0.0), maker="triton")
        assert torch.equal(chosen.cpu(), logits.argmax(-1))


def test_rows_without_probabilities_end_as_in_the_reference(device: str) -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    logits[0, 70], logits[1], logits[2, [5, 99]], logits[3] = NAN, -INF, INF, INF
    for filters in ({}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}):
        options = Options.alike(4, **filters)
        expected = kernels.sample(logits, *options, maker="reference")
        assert torch.equal(kernels.sample(logits.to(device), *options, maker="triton").cpu(), expected)


def test_a_number_that_rounding_leaves_beyond_the_last_falls_on_the_last(device: str) -> None:
    """The largest random number: in some of these rows the sum in order stays below its share of the whole."""
    rows = [3 * torch.randn(150, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    logits = torch.stack(rows)
    options = Options.alike(6, top_k=150, min_p=1e-300)._replace(u=[LAST_NUMBER] * 6)
    assert torch.equal(kernels.sample(logits, *options, maker="reference"), logits.argmin(-1))
    assert torch.equal(kernels.sample(logits.to(device), *options, maker="triton").cpu(), logits.argmin(-1))


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-6, 1e300])
def test_no_temperature_leaves_the_range_of_numbers(temperature: float, device: str) -> None:
    logits = torch.arange(100.0, device=device)[None] / 8
    for filters in ({}, {"top_k": 9}, {"top_p": 0.5}):
        options = Options.alike(1, temperature, **filters)._replace(u=[0.2505])
        hot = {"top_k": 99 - 2, "top_p": 99 - 12}.get(next(iter(filters), ""), 25)
        assert kernels.sample(logits, *options, maker="triton").item() == (99 if temperature < 1 else hot)


def test_the_ends_of_the_numbers_fall_upon_tokens_that_have_weight(device: str) -> None:
    logits = torch.full((1, 300), -INF)
    logits[0, [40, 41, 150, 291]] = torch.tensor([0.0, 1.0, 0.5, -1.0])
    for u, plain, ranked in ((0.0, 40, 41), (LAST_NUMBER, 291, 291)):
        for filters, expected in (({}, plain), ({"top_k": 4}, ranked), ({"top_k": 300}, ranked)):
            options = Options.alike(1, **filters)._replace(u=[u])
            assert kernels.sample(logits.to(device), *options, maker="triton").item() == expected


def test_the_search_ends_in_32_rounds(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: rounds of halving for logits of all exponents, so that as little as possible is passed over."""
    from kernels.triton import ranking

    if device != "cpu":
        pytest.skip("rounds are counted in the interpreter")
    rounds: list[int] = []
    passes = ranking._passes
    monkeypatch.setattr(sampling, "LARGEST_BLOCK", 512)
    monkeypatch.setattr(ranking, "_passes", lambda *given: (rounds.append(1), passes(*given))[1])
    logits = -(2.0 ** torch.linspace(-126, 127, 500))[None]
    for filters in ({"top_k": 3}, {"top_k": 255}):
        rounds.clear()
        options = Options.alike(1, **filters)._replace(u=[LAST_NUMBER])
        kernels.sample(logits, *options, maker="triton")
        assert 0 < len(rounds) <= 2 * 32


@pytest.mark.gpu_quick
def test_neighbours_change_no_token(device: str) -> None:
    logits, options = random_case(Random(3), (80,), rows=4)
    together = kernels.sample(logits.to(device), *options, maker="triton").tolist()
    for row, one in enumerate(zip(*options, strict=True)):
        alone = kernels.sample(logits[row : row + 1].to(device), *([number] for number in one), maker="triton")
        assert alone.item() == together[row]


def test_lists_tensors_and_16_bit_logits(device: str) -> None:
    logits, options = random_case(Random(2), (40,), rows=3)
    logits = logits.to(device, torch.bfloat16)
    lists, tensors, wide = (
        kernels.sample(given, *how, maker="triton")
        for given, how in ((logits, options), (logits, options.tensors()), (logits.float(), options))
    )
    assert torch.equal(lists, tensors) and torch.equal(lists, wide) and lists.dtype == torch.int64
    assert kernels.sample(logits[:0], *([[]] * 5), maker="triton").shape == (0,)


def test_what_it_cannot_take_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.triton.launch.interpreted", lambda: True)
    options, logits = Options.alike(2), torch.zeros(2, 10)
    for wrong, reason in (
        (logits.double(), "logits are torch.float64"),
        (torch.zeros(10, 2).T, "do not lie side by side"),
        (torch.zeros(2, 0), "not rows of a vocabulary"),
    ):
        with pytest.raises(ValueError, match=reason):
            kernels.sample(wrong, *options, maker="triton")
    with pytest.raises(ValueError, match="3 numbers as top_p for 2 rows"):
        kernels.sample(logits, *options._replace(top_p=[1.0] * 3), maker="triton")
