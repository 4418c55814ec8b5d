"""Notebook 06's exercise: the reader's kernel in the engine gives the engine's tokens, and cases catch what a plain
interpreter hides. That solution, skeleton and mutants are right: `test_exercise_registry.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import kernels
from kernels.triton.interpreter import OutOfBounds, interpreting
from tests.tiny_llm import GREEDY, open_llm, tokens
from workbench.errors import UsageError
from workbench.lab import exercise_source as source
from workbench.lab.exercise_result import FAILS, PASSES
from workbench.lab.exercises import exercise
from workbench.lab.exercises import nb06_cases as cases

NORM = exercise("06", "add-rms-norm")
pytestmark = pytest.mark.skipif(bool(cases.cannot_launch()), reason="no Triton kernel runs here")


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


def written(old: str, new: str) -> Any:
    """The solution with one place written otherwise, as a reader's cell would define it."""
    text = NORM.solution()
    assert text.count(old) == 1
    return source.compiled(text.replace(old, new), NORM.name)


def test_the_engine_answers_with_the_readers_kernel(folder: Path) -> None:
    llm, own = open_llm(folder, enforce_eager=True), kernels.rms_norm
    before = tokens(llm, [[5, 6, 7]])
    with NORM.use(NORM.function) as used:
        assert tokens(llm, [[5, 6, 7]]) == before
    assert kernels.rms_norm is own
    # Every norm of every step but the first one adds a residual: two a layer.
    assert used.who == "your function" and used.function is NORM.function
    assert used.calls == 2 * llm.model_config.num_layers * GREEDY.max_tokens


def test_a_wrong_kernel_changes_the_answer_that_the_engine_gives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = open_llm(folder, enforce_eager=True)
    before = tokens(llm, [[5, 6, 7]])
    wrong = written(" / width + eps", " * width + eps")
    monkeypatch.setattr(kernels, "rms_norm", NORM.swap.adapt(lambda *a: cases.launch_norm(wrong, *a), kernels.rms_norm))
    assert tokens(llm, [[5, 6, 7]]) != before


def test_a_recorded_step_cannot_take_it(folder: Path) -> None:
    llm = open_llm(folder)
    if llm.runner.captured is None:
        pytest.skip("nothing is recorded here")
    with NORM.use(NORM.function), pytest.raises(UsageError, match="enforce_eager=True"):
        tokens(llm, [[5, 6, 7]])


def test_a_decorated_kernel_is_taken_too() -> None:
    import triton

    assert NORM.graded(triton.jit(NORM.function)).state == PASSES


@pytest.mark.skipif(not interpreting(), reason="only the interpreter sees it")
def test_what_the_plain_interpreter_hides_is_found() -> None:
    import triton

    careless = written("(stream_ptr, mask=inside, other=0.0)", "(stream_ptr, mask=inside)")
    x, stream = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[2.0, 1.0, 0.5]])
    weight, out = torch.ones(3), torch.zeros(1, 3)
    cases.kernel_of(careless)[(1,)](x, stream.clone(), weight, out, 3, 3, 3, 1e-5, BLOCK=triton.next_power_of_2(3))
    assert torch.allclose(out, kernels.rms_norm(x, weight, 1e-5, stream.clone(), maker="reference")), "it looks right"
    result = NORM.graded(careless)
    assert result.state == FAILS and result.failure is not None and "nan" in result.failure.got
    assert "other=0.0" in result.failure.help


@pytest.mark.skipif(not interpreting(), reason="only the interpreter sees it")
def test_an_address_outside_the_tensors_names_the_readers_line() -> None:
    result = NORM.graded(written("column < width", "column < BLOCK"))
    assert result.failure is not None and OutOfBounds.__name__ in result.failure.got
    assert "tl.load(weight_ptr" in result.failure.line


def test_gaps_between_rows_are_nobodys() -> None:
    rows = cases.Rows(((1.0, 2.0), (3.0, 4.0)), 5)
    view = rows.tensor("cpu")
    assert view.shape == (2, 2) and view.stride() == (5, 1) and cases._gaps(view) == "untouched"
    view.as_strided((1,), (1,), 3).fill_(0.0)
    assert cases._gaps(view) == "overwritten"
