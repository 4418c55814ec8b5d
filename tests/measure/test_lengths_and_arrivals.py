"""Lengths and arrivals follow the distributions they are named after; every draw is decided by the seed."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from statistics import fmean, median, pstdev

import pytest

from workbench.errors import UsageError
from workbench.measure import arrivals
from workbench.measure.lengths import LogNormal, Observed, Uniform, Zipf, described, parse_lengths

KS_LIMIT = 1.63
"""Largest distance between an empirical and the true distribution, times sqrt(n), at a level of 1 %."""


def distance(sample, cdf):
    """Kolmogorov–Smirnov: times sqrt(n)."""
    ordered, n = sorted(sample), len(sample)
    gaps = (max((i + 1) / n - cdf(x), cdf(x) - i / n) for i, x in enumerate(ordered))
    return max(gaps) * math.sqrt(n)


def gaps(times):
    return [b - a for a, b in pairwise([0.0, *times])]


def exponential(rate):
    return lambda x: 1 - math.exp(-rate * x)


def test_poisson_gaps_are_exponential_and_the_rate_is_exact():
    times = arrivals.poisson(4000, 8.0, seed=1)
    assert times == arrivals.poisson(4000, 8.0, seed=1) != arrivals.poisson(4000, 8.0, seed=2)
    assert times == sorted(times) and times[-1] == pytest.approx(4000 / 8.0)
    assert distance(gaps(times), exponential(8.0)) < KS_LIMIT
    assert distance(gaps(times), exponential(7.0)) > KS_LIMIT, "the test can tell another rate"


def test_burstiness_is_the_shape_of_the_gaps():
    def erlang(x):  # shape 2, mean 1/5
        return 1 - math.exp(-10 * x) * (1 + 10 * x)

    even = gaps(arrivals.gamma(4000, 5.0, 2.0, seed=3))
    assert distance(even, erlang) < KS_LIMIT < distance(even, exponential(5.0))
    for burstiness in (0.25, 1.0, 4.0):
        found = gaps(arrivals.gamma(20_000, 5.0, burstiness, seed=4))
        assert fmean(found) == pytest.approx(0.2)
        assert pstdev(found) / fmean(found) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_on_off_is_silent_when_it_is_off_and_poisson_when_it_is_on():
    times = arrivals.on_off(3000, 10.0, on=2.0, off=5.0, seed=5)
    assert all(time % 7.0 <= 2.0 for time in times)
    busy = [(time // 7.0) * 2.0 + time % 7.0 for time in times]
    assert distance(gaps(busy), exponential(10.0)) < KS_LIMIT
    assert 3000 / times[-1] == pytest.approx(10.0 * 2 / 7, rel=0.05)


def test_replay_starts_at_zero_and_goes_faster():
    assert arrivals.replayed([100.0, 103.0, 103.0, 110.0]) == [0.0, 3.0, 3.0, 10.0]
    assert arrivals.replayed([100.0, 103.0], speed=2.0) == [0.0, 1.5]
    assert arrivals.replayed([]) == []
    with pytest.raises(UsageError, match=r"go back from 3\.0 to 1\.0"):
        arrivals.replayed([3.0, 1.0])


def test_an_infinite_rate_is_all_at_once():
    assert arrivals.poisson(3, math.inf, 0) == arrivals.at_once(3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_rates_that_mean_nothing_are_refused(rate):
    with pytest.raises(UsageError, match="request rate"):
        arrivals.poisson(3, rate, 0)
    with pytest.raises(UsageError, match="on/off"):
        arrivals.on_off(3, 1.0, 1.0, -2.0, 0)


def drawn(lengths, n=20_000, seed=0):
    rng = random.Random(seed)
    return [lengths.draw(rng) for _ in range(n)]


def test_uniform_draws_every_length_alike():
    found = drawn(Uniform(3, 12))
    counts = [found.count(length) for length in range(3, 13)]
    assert sum(counts) == len(found)
    # Chi-square with 9 degrees of freedom: 21.7 at a level of 1 %.
    assert sum((count - 2000) ** 2 / 2000 for count in counts) < 21.7
    assert set(drawn(Uniform(5, 5), 10)) == {5}


def test_lognormal_has_its_median_and_its_tail():
    found = drawn(LogNormal(200, 0.5))
    assert median(found) == pytest.approx(200, rel=0.02)
    assert pstdev(math.log(x) for x in found) == pytest.approx(0.5, rel=0.03)
    # A little more than the limit, because lengths are whole numbers.
    assert distance(found, lambda x: 0.5 * (1 + math.erf(math.log(x / 200) / 0.5 / 2**0.5))) < KS_LIMIT + 0.4
    held = drawn(LogNormal(200, 2.0, 50, 300), 1000)
    assert (min(held), max(held)) == (50, 300)


def test_zipf_chances_fall_as_one_over_k_to_alpha():
    found = drawn(Zipf(1.2, 10, 40))
    weights = [k**-1.2 for k in range(1, 32)]
    expected = [len(found) * w / sum(weights) for w in weights]
    counts = [found.count(length) for length in range(10, 41)]
    assert sum(counts) == len(found)
    # Chi-square with 30 degrees of freedom: 50.9 at a level of 1 %.
    assert sum((a - b) ** 2 / b for a, b in zip(counts, expected, strict=True)) < 50.9
    assert len(set(drawn(Zipf(0, 1, 4), 200))) == 4


def test_observed_draws_what_was_seen():
    assert set(drawn(Observed((4, 4, 9)), 200)) == {4, 9}
    assert drawn(Observed((4, 4, 9)), 6000).count(4) == pytest.approx(4000, rel=0.05)


@pytest.mark.parametrize(
    ("text", "lengths", "told"),
    [
        ("128", Uniform(128, 128), [128, 128]),
        ("16:512", Uniform(16, 512), [16, 512]),
        ("lognormal:200:0.5", LogNormal(200, 0.5), "lognormal:200:0.5:1:1048576"),
        ("lognormal:200:0.5:8:900", LogNormal(200, 0.5, 8, 900), "lognormal:200:0.5:8:900"),
        ("zipf:1.1:1:64", Zipf(1.1, 1, 64), "zipf:1.1:1:64"),
    ],
)
def test_lengths_are_read_and_told(text, lengths, told):
    assert parse_lengths(text) == lengths and described(lengths) == told
    assert parse_lengths(str(lengths)) == lengths


@pytest.mark.parametrize(
    "text", ["", "x", "0", "5:4", "-3:4", "1:2:3", "lognormal:5", "lognormal:0:1", "zipf:1:2", "zipf:-1:2:3", "1.5"]
)
def test_texts_that_are_no_lengths_are_refused(text):
    with pytest.raises(UsageError):
        parse_lengths(text)
