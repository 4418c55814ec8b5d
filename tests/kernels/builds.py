"""Both builds of the C++ kernels, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels.cpu import build, native


@pytest.fixture(params=build.BUILDS)
def one_build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """For `pytest.mark.usefixtures`: every test of a file once with each build."""
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", request.param)
    for cached in (build._library, native.function):
        cached.cache_clear()
    yield request.param
    for cached in (build._library, native.function):
        cached.cache_clear()
