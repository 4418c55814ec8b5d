"""How long one call takes, in seconds: the median of many, with quartiles.

On a GPU the level-2 cache is emptied before each call and the GPU's own clock is read around it
(`triton.testing.do_bench`). The call is captured as a CUDA graph first where it can be: else Python would be timed, as
it takes longer to launch a kernel than many kernels run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from workbench.measure.timing import time_call

WARM_UP_MS, MEASURED_MS = 10, 60


def timed(call: Callable[[], Any], device: str) -> dict[str, Any]:
    """``{seconds, low, high, graph}``; ``graph``: whether Python was kept out."""
    if device == "cpu":
        found = time_call(call, warmup=1, repeats=3)
        return {"seconds": found.median, "low": found.low, "high": found.high, "graph": False}
    from triton.testing import do_bench

    call()
    torch.cuda.synchronize()
    replay = captured(call)
    low, median, high = do_bench(
        replay or call, warmup=WARM_UP_MS, rep=MEASURED_MS, quantiles=[0.25, 0.5, 0.75]
    )  # fmt: skip
    return {"seconds": median / 1e3, "low": low / 1e3, "high": high / 1e3, "graph": replay is not None}


def captured(call: Callable[[], Any]) -> Callable[[], None] | None:
    """The call as a CUDA graph; None where it waits for the device or copies from the host, which no graph can."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay
