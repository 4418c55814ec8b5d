"""Every test here runs its kernels in the faithful interpreter with the checker on, or compiled where a GPU is.

`tests/conftest.py` chooses which, since Triton decides it once, when it is imported.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels.triton.interpreter import faithful, interpreting


@pytest.fixture(autouse=True)
def _faithful_interpreter() -> Iterator[None]:
    with faithful(check=True):
        yield


@pytest.fixture
def device() -> str:
    """Where tensors for kernels belong."""
    return "cpu" if interpreting() else "cuda"
