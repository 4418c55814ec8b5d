"""Every test here runs its kernels in the faithful interpreter with the checker on, or compiled where a GPU is.

`tests/conftest.py` chooses which, since Triton decides it once, when it is imported.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.triton.interpreter import faithful, interpreting


@pytest.fixture(autouse=True)
def _faithful_interpreter() -> Iterator[None]:
    with faithful(check=True):
        yield


@pytest.fixture
def device() -> str:
    """Where tensors for kernels belong."""
    return "cpu" if interpreting() else "cuda"


@pytest.fixture
def no_clean_memory() -> Iterator[None]:
    """`torch.empty` gives NaN: what a kernel leaves unwritten shows."""
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.utils.deterministic.fill_uninitialized_memory and torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(was)
