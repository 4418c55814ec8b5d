"""Notebook 15's exercises: hits are the engine's own, a judge sees each broken rule, and the desk uses the reader's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.config import EngineConfig
from workbench.lab import help_desk
from workbench.lab.exercises import exercise
from workbench.lab.exercises.nb15_cases import (
    Assembler,
    assemble_cases,
    best_prompts,
    each,
    hits,
    judged,
    laid_out,
)
from workbench.lab.help_desk import KINDS, Part
from workbench.lab.prompt_heads import hit_tokens
from workbench.sampling_params import SamplingParams
from workbench.simulate import FixedCost, simulated_engine

MET, ASSEMBLE = exercise("15", "met-again"), exercise("15", "assemble")


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


def served(prompts: Sequence[Sequence[int]], block_size: int, index: str) -> list[int]:
    """Hit tokens of prompts that come one after the other, by a whole engine on a virtual clock."""
    config = EngineConfig(enable_prefix_caching=True, prefix_index=index, block_size=block_size, num_kv_blocks=4096)
    engine = simulated_engine(config, FixedCost(0.01, 0.0))
    found = []
    for tokens in prompts:
        engine.add_request(list(tokens), SamplingParams(max_tokens=1, ignore_eos=True))
        found.append(engine.step().cached_tokens)
        assert not engine.has_unfinished()
    return found


few_tokens = st.lists(st.integers(1, 3), min_size=1, max_size=14)


@settings(max_examples=60, deadline=None)
@given(st.lists(few_tokens, max_size=5), few_tokens, st.integers(1, 5), st.sampled_from(["radix", "hash"]))
def test_what_is_met_again_is_what_a_whole_engine_meets(
    seen: list[list[int]], prompt: list[int], block_size: int, index: str
) -> None:
    engines = served([*seen, prompt], block_size, index)
    assert hit_tokens([*seen, prompt], block_size) == engines
    assert MET.function(seen, prompt, block_size) == engines[-1]


def test_no_order_of_kinds_hits_more_often_than_the_one_that_is_asked_for() -> None:
    stream = help_desk.asks(30, 9)
    most = hits(best_prompts(stream))
    for order in permutations(KINDS[:-1]):
        assert hits([laid_out((*order, "question"), parts) for parts in stream]) <= most
    assert hits([help_desk.assemble(parts) for parts in stream]) < most / 10


def _stream() -> list[list[Part]]:
    [stream] = next(case for case in assemble_cases() if case.name == "stream 1").make()
    found: list[list[Part]] = stream
    return found


def _solved(parts: Sequence[Part]) -> list[str]:
    found: list[str] = ASSEMBLE.function(list(parts))
    return found


def _of(kind: str, parts: Sequence[Part]) -> list[str]:
    return [one["text"] for one in parts if one["kind"] == kind]


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        (_solved, ""),
        (lambda parts: laid_out(("tool", *(k for k in KINDS if k != "tool")), parts), ""),
        (lambda parts: "\n".join(_solved(parts)), "a list of texts was expected"),
        (lambda parts: [*_solved(parts)[:-1], 3], "a list of texts was expected"),
        (lambda parts: _solved(parts)[1:], "lost: "),
        (lambda parts: [_solved(parts)[0], *_solved(parts)], "twice, or no part's text"),
        (lambda parts: ["Be kind.", *_solved(parts)], "twice, or no part's text"),
        (lambda parts: _solved(parts)[::-1], "the question must stand last"),
        (lambda parts: _unsorted(parts, "document"), "documents must stand in the order"),
        (lambda parts: _unsorted(parts, "tool"), "tools must stand in the order"),
        (lambda parts: [*_of("time", parts), *(t for t in _solved(parts) if t not in _of("time", parts))], "too early"),
    ],
)
def test_the_judge_sees_each_broken_rule(spoiled: Callable[..., object], words: str) -> None:
    stream = _stream()
    found = judged(best_prompts(stream), each(spoiled, stream), stream)  # type: ignore[arg-type]
    assert (found is None) if not words else (found is not None and words in found.words)


def _unsorted(parts: Sequence[Part], kind: str) -> list[str]:
    """The solution with the texts of one kind turned round."""
    texts = _solved(parts)
    turned = iter([text for text in texts if text in _of(kind, parts)][::-1])
    return [next(turned) if text in _of(kind, parts) else text for text in texts]


def test_the_desk_lays_its_prompts_out_by_the_readers_function() -> None:
    own, parts = help_desk.assemble, _stream()[0]
    before = help_desk.prompt(parts)
    with ASSEMBLE.use(ASSEMBLE.function) as used:
        assert help_desk.prompt(parts) == "\n\n".join(_solved(parts)) != before
    assert used.who == "your function" and used.calls == 1
    assert help_desk.assemble is own and help_desk.prompt(parts) == before


def test_a_function_cannot_change_the_desks_parts() -> None:
    def greedy(parts: list[Part]) -> list[str]:
        for one in parts:
            one["text"] = ""
        return []

    parts = _stream()[0]
    with ASSEMBLE._swapped(greedy):
        help_desk.prompt(parts)
    assert all(one["text"] for one in parts)


def test_a_prompt_of_the_desk_has_every_kind_once_or_more() -> None:
    solver: Assembler = _solved
    for parts in help_desk.asks(20, 3):
        assert [kind for kind in KINDS if _of(kind, parts)] == list(KINDS)
        assert len(solver(parts)) == len({one["text"] for one in parts}) == len(parts) - 1
