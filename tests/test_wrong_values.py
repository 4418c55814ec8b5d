"""Every field of the two classes that people fill in, against every kind of wrong value: taken as what it means, or
refused in one line that names the field, the value and the limit. Never another exception."""

from __future__ import annotations

import dataclasses
import math
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.checks import as_real, as_token_ids, as_whole, shown
from workbench.config import EngineConfig
from workbench.errors import UsageError
from workbench.sampling_params import SamplingParams

FIELDS = [(kind, spec.name) for kind in (EngineConfig, SamplingParams) for spec in dataclasses.fields(kind)]
NUMERIC = [
    (kind, spec)
    for kind in (EngineConfig, SamplingParams)
    for spec in dataclasses.fields(kind)
    if str(spec.type).split(" ")[0] in ("int", "float")
]
HUGE = 10**400
UNWRITABLE = 10 ** (sys.int_info.default_max_str_digits + 1)
"""Python refuses to write it out."""

WRONG: list[Any] = [
    HUGE, -HUGE, UNWRITABLE, -UNWRITABLE, 2**63, 2**64, -(2**63) - 1, math.nan, math.inf, -math.inf, True, False,
    "3", "", "\n", b"3", None, [1], (1,), {1: 2}, {1}, 1j, Decimal(1), object(), int, numpy.bool_(True),
    numpy.float32("nan"), numpy.float64("inf"), numpy.array([1, 2]), numpy.array(3), Fraction(HUGE), "x" * 10_000,
]  # fmt: skip
NUMBERS: list[Any] = [
    0, 1, -1, 7, 0.5, 5e-324, sys.float_info.max, numpy.int8(3), numpy.uint64(2**64 - 1), numpy.int64(2),
    numpy.float32(0.5), numpy.float16(1), numpy.float64(0.25), Fraction(1, 3),
]  # fmt: skip
ANYTHING = st.one_of(
    st.sampled_from(WRONG + NUMBERS),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.integers(), inner, max_size=3)),
        max_leaves=5,
    ),
)


def fill(kind: Any, name: str, value: Any) -> str | None:
    """None if the value is taken, else the words of its refusal. Any other exception fails the test."""
    try:
        kind(**{name: value})
    except UsageError as error:
        words = str(error)
        assert name in words and "\n" not in words and len(words) < 400, words
        return words
    return None


@settings(max_examples=60, deadline=None)
@given(value=ANYTHING)
@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_any_value_is_taken_or_refused_by_name(kind: Any, name: str, value: Any) -> None:
    fill(kind, name, value)


@pytest.mark.parametrize(("kind", "spec"), NUMERIC, ids=[f"{kind.__name__}.{spec.name}" for kind, spec in NUMERIC])
def test_what_is_no_number_of_the_field_is_refused(kind: Any, spec: Any) -> None:
    for value in WRONG:
        absent = value is None and "None" in spec.type
        # A seed has 64 bits, and any finite number is a temperature.
        fits = (kind is SamplingParams and type(value) is int) and (
            (spec.name == "seed" and value == 2**63) or (spec.name == "temperature" and value in (2**63, 2**64))
        )
        assert (fill(kind, spec.name, value) is None) == (absent or fits), shown(value)


@pytest.mark.parametrize(("kind", "spec"), NUMERIC, ids=[f"{kind.__name__}.{spec.name}" for kind, spec in NUMERIC])
def test_numbers_of_numpy_are_kept_as_plain_ones(kind: Any, spec: Any) -> None:
    whole = spec.type.startswith("int")
    taken = 0
    for value in NUMBERS:
        if fill(kind, spec.name, value) is None:
            found = getattr(kind(**{spec.name: value}), spec.name)
            assert type(found) is (int if whole else float) and found == (value if whole else float(value))
            taken += 1
        elif whole and isinstance(value, (float, numpy.floating, Fraction)):
            assert "whole number" in str(fill(kind, spec.name, value)) or "type int" in str(
                fill(kind, spec.name, value)
            )
    # Those of offload and dynamic batching are refused whatever they are.
    assert taken >= 1 or spec.metadata.get("unbuilt_unless_default") or "only_if" in spec.metadata


@pytest.mark.parametrize(("kind", "spec"), NUMERIC, ids=[f"{kind.__name__}.{spec.name}" for kind, spec in NUMERIC])
def test_beyond_its_limit_the_limit_is_named(kind: Any, spec: Any) -> None:
    meta = spec.metadata
    least, most = meta.get("least", meta.get("minimum")), meta.get("most", meta.get("maximum"))
    words = fill(kind, spec.name, -HUGE)
    if least is not None and spec.type.startswith("int"):
        assert words is not None and (f"least is {least}" in words or f"at least {least}" in words), words
    words = fill(kind, spec.name, HUGE)
    assert words is not None
    if spec.type.startswith("int") and not meta.get("unbuilt_unless_default"):
        assert f"most is {most or 2**63 - 1}" in words or f"at most {most}" in words, words


@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-300, 1.0, 2**63, 1e308, sys.float_info.max])
def test_temperature_may_be_any_finite_float_from_zero(temperature: float) -> None:
    assert SamplingParams(temperature=temperature).temperature == temperature


@settings(deadline=None)
@given(st.dictionaries(st.one_of(st.integers(), st.text(max_size=2), st.floats(), st.booleans()), ANYTHING, max_size=3))
@example({numpy.int32(5): numpy.float32(0.5)})
@example({HUGE: 1.0})
@example({1: math.nan})
def test_any_logit_bias_is_taken_or_refused(bias: dict[Any, Any]) -> None:
    if fill(SamplingParams, "logit_bias", bias) is None:
        kept = SamplingParams(logit_bias=bias).logit_bias
        assert kept == {int(token): float(value) for token, value in bias.items()} and kept is not bias
        assert all(type(token) is int and type(value) is float for token, value in kept.items())


def test_what_the_checks_say() -> None:
    assert [as_whole(value) for value in (3, numpy.int8(3), True, 3.0, "3", None)] == [3, 3, None, None, None, None]
    assert [as_real(value) for value in (3, 0.5, Fraction(1, 2), HUGE, -HUGE)] == [3.0, 0.5, 0.5, math.inf, -math.inf]
    assert [as_real(value) for value in (True, "3", Decimal(1), 1j, None)] == [None] * 5
    assert as_token_ids(None) == () == as_token_ids(-1) and as_token_ids([2, 7, -1]) == (2, 7)
    assert [as_token_ids(value) for value in ("2", [1.5], True, -2, [[1]], {})] == [None] * 6
    assert shown("a\nb") == "'a\\nb'" and len(shown("x" * 999)) < 90 and "int" in shown(UNWRITABLE)
