"""workbench: a readable LLM serving engine, and a course that runs it.

``LLM`` needs torch and is imported on first use, so that the scheduler, the KV accounting and the simulator can be
used without it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from workbench.config import EngineConfig
from workbench.engine.engine import Engine
from workbench.sampling_params import SamplingParams

# Torch's CPU threads wait for each other by spinning, and on a busy machine a spinning thread keeps the one it waits
# for off the processor: measured on two cores with another busy process, a small matrix product took 16 ms instead of
# 4. It must be said before torch is imported; whoever sets the variable decides.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Large tensors in 2 MB pages: gathering keys and values touches memory all over the pool (a few per cent of a step).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if TYPE_CHECKING:
    from workbench.llm import LLM as LLM

__version__ = "0.1.0"
__all__ = ["LLM", "Engine", "EngineConfig", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from workbench.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
