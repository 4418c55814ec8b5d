"""The engine on a model's shapes: tokens per second at several concurrencies, with CUDA graphs and without.

All requests arrive at once and there are as many as may run, so steps are pure decodes but for the first few.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from workbench.config import EngineConfig
from workbench.engine.trace import StepTrace
from workbench.llm import LLM
from workbench.measure.gpu.models import TINY, folder
from workbench.measure.gpu.report import Report, why
from workbench.measure.gpu.scale import Scale
from workbench.model.cuda_graphs import cannot_capture
from workbench.sampling_params import SamplingParams

CONCURRENCIES = (1, 8, 32, 128)


def engine(scale: Scale, report: Report, name: str) -> None:
    """Rows ``{model, concurrency, graphs, output_throughput, step_seconds, forward_share, …}``; graphs first."""
    model = name.removeprefix("engine-")
    with tempfile.TemporaryDirectory() as scratch:
        source = folder(Path(scratch), model, **(TINY if scale.tiny else {}))
        loaded: LLM | None = None
        for graphs in (True, False):
            if not report.begin(f"graphs {graphs}"):
                continue
            try:
                begin = time.perf_counter()
                llm = opened(scale, source, graphs, loaded)
                loaded = loaded or llm
                if graphs and llm.runner.captured is None:
                    report.row(model=model, graphs=graphs, error=f"no step is captured: {_why_not(llm)}")
                    continue
                graph_bytes = getattr(getattr(llm.runner.captured, "recorder", None), "bytes", None)
                report.row(model=model, graphs=graphs, opened_seconds=time.perf_counter() - begin,
                           attention=llm.runner.decoder.attention.name, captured=llm.runner.captured is not None,
                           graph_bytes=graph_bytes, kv_blocks=llm.config.num_kv_blocks)  # fmt: skip
                for concurrency in scale.pick(CONCURRENCIES, (1, 3), (1, 32)):
                    served(llm, concurrency, *scale.pick((32, 4), (4, 3)))  # compiles what is not compiled yet
                    found = served(llm, concurrency, *scale.pick((512, 96), (8, 6), (256, 48)))
                    report.row(model=model, graphs=graphs, concurrency=concurrency, **found)
            except Exception as error:
                report.row(model=model, graphs=graphs, error=why(error))
                loaded = None


def _why_not(llm: LLM) -> str:
    return cannot_capture(llm.runner.decoder) if llm.runner.decoder.device.type == "cuda" else "no C++ compiler"


def opened(scale: Scale, source: Path, graphs: bool, weights_of: LLM | None = None) -> LLM:
    options: dict[str, Any] = {
        "model": str(source), "load_format": "dummy", "device": scale.device, "enforce_eager": not graphs,
        "max_num_seqs": scale.pick(max(CONCURRENCIES), 4), "max_model_len": scale.pick(2048, 64),
        "enable_prefix_caching": False, "max_num_batched_tokens": scale.pick(8192, 64),
        "num_kv_blocks": scale.pick(max(CONCURRENCIES) * 40, 64),
    }  # fmt: skip
    if scale.device == "cuda":
        options["attention_backend"] = "triton"
    return LLM(EngineConfig(**options), weights_of=weights_of)


def served(llm: LLM, concurrency: int, input_len: int, output_len: int) -> dict[str, Any]:
    """``output_throughput``: tokens per second of the whole run; ``step_seconds``: the median step in which all decode;
    ``forward_share``: of it, the model; ``phases``: its parts. ``decode_throughput``: of such steps alone."""
    traces: list[StepTrace] = []
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    vocab = llm.model_config.vocab_size
    prompts = [[(31 * n + 7 * place) % vocab for place in range(input_len)] for n in range(concurrency)]
    llm.engine.listeners.append(traces.append)
    begin = time.perf_counter()
    try:
        llm.generate(prompts, params, use_tqdm=False)
    finally:
        llm.engine.listeners.remove(traces.append)
    seconds = time.perf_counter() - begin
    full = [trace for trace in traces if [item["kind"] for item in trace.scheduled] == ["decode"] * concurrency]
    step = statistics.median(trace.duration for trace in full)
    phases = {name: statistics.median(trace.phases.get(name, 0.0) for trace in full) for name in full[0].phases}
    return {
        "output_throughput": concurrency * output_len / seconds,
        "decode_throughput": concurrency / step,
        "step_seconds": step,
        "forward_share": phases["forward"] / step,
        "phases": phases,
        "bytes_per_second": statistics.median(trace.bytes for trace in full) / step,
        "steps": len(full),
    }
