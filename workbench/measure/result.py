"""The form that every benchmark's result has, and warming up before one."""

from __future__ import annotations

from typing import Any

from workbench.llm import LLM
from workbench.measure.load import SCHEMA_VERSION
from workbench.measure.provenance import provenance
from workbench.sampling_params import SamplingParams

__all__ = ["SCHEMA_VERSION", "as_result", "warm_up"]


def as_result(benchmark: str, llm: LLM, workload: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """What was measured, with what of, on what and where: ready for JSON."""
    return {
        **measured,
        "benchmark": benchmark,
        "schema_version": SCHEMA_VERSION,
        "config": llm.config.to_dict(),
        "workload": workload,
        "provenance": provenance(llm.runner.decoder.device),
    }


def warm_up(llm: LLM) -> None:
    """A few tokens through the model, so that what happens only once happens before the measurement. Empties the prefix
    cache: what was served before is no hit."""
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    room = llm.engine.scheduler.max_model_len
    if room > 4:
        llm.generate([[0] * min(4, room - 3)], params, use_tqdm=False)
    llm.engine.reset_prefix_cache()
