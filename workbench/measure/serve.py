"""``bench serve``: requests that arrive over time, served by an engine in this process."""

from __future__ import annotations

from typing import Any

from workbench.errors import WorkbenchError
from workbench.llm import LLM
from workbench.measure.drive import drive
from workbench.measure.load import Load, described, metrics
from workbench.measure.result import as_result, warm_up


def run(load: Load, llm: LLM | None = None) -> dict[str, Any]:
    """Serves the workload once and returns vLLM's keys with where they come from.

    ``llm``: one that is open already with this config. Raises WorkbenchError when every request is rejected.
    """
    llm = llm or LLM(load.config)
    warm_up(llm)
    told = drive(llm.engine, load.workload, llm.model_config.vocab_size, load.max_concurrency)
    if not told.answers:
        raise WorkbenchError(f"all {len(told.rejected)} requests are rejected; the first: {told.rejected[0].why}")
    return as_result("serve", llm, described(load), metrics(told, load, llm.config.max_num_seqs))
