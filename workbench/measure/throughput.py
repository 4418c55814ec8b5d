"""``bench throughput``: requests that all arrive at once, ours and a peer's in turn, medians over rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from workbench.config import EngineConfig
from workbench.engine.trace import StepTrace
from workbench.errors import UsageError, WorkbenchError
from workbench.llm import LLM, model_source
from workbench.measure.metrics import serving_metrics
from workbench.measure.peers.in_process import transformers_model
from workbench.measure.peers.workers.transformers_serving import TransformersPeer
from workbench.measure.result import as_result
from workbench.measure.workload import Workload
from workbench.sampling_params import SamplingParams

Answers = list[list[int]]
Serve = Callable[[list[list[int]], list[int]], Answers]


def run(config: EngineConfig, workload: Workload, vs: str | None = None, repeats: int = 1) -> dict[str, Any]:
    """Serves the workload ``repeats`` times and returns vLLM's keys with where they come from. The prefix cache is
    emptied before each time, so a hit is one within the workload.

    With ``vs="transformers"`` each round also runs its static-batch ``generate``, its paged ``generate_batch`` and, for
    both sides, the first request alone (``single_stream``), one after the other in this process. ``ratios`` are our
    output tokens per second over theirs.
    """
    llm = LLM(config)
    prompts, lens, rejected = _admissible(llm, workload)
    warm_up = [prompts[0][:4]], [min(lens[0], 4)]
    _ours(llm, *warm_up)
    peers = _peers(llm, config, vs)
    for serve in peers.values():
        serve(*warm_up)
    alone = (prompts[:1], lens[:1])
    rounds: list[dict[str, Any]] = []
    for _ in range(repeats):
        metrics, answers = _ours(llm, prompts, lens)
        metrics["peers"] = {name: _theirs(serve, prompts, lens, answers) for name, serve in peers.items()}
        if peers:
            ours, answers = _ours(llm, *alone)
            theirs = _theirs(peers["generate"], *alone, answers)
            metrics["peers"]["single_stream"] = theirs | {"ours": ours["output_throughput"]}
        rounds.append(metrics)
    # The round whose output throughput is the median stands for all; its metrics belong together.
    rounds.sort(key=lambda metrics: metrics["output_throughput"])
    result = rounds[len(rounds) // 2]
    result["rejected"] = rejected
    by_peer = {name: [metrics["peers"][name] for metrics in rounds] for name in result["peers"]}
    result["peers"] = {
        name: ran[0] | {key: _median(ran, key) for key in ("output_throughput", "duration", "ours") if key in ran[0]}
        for name, ran in by_peer.items()
    }
    result["ratios"] = {
        name: statistics.median(
            peer.get("ours", metrics["output_throughput"]) / peer["output_throughput"]
            for metrics, peer in zip(rounds, ran, strict=True)
        )
        for name, ran in by_peer.items()
    }
    if not peers:
        del result["peers"], result["ratios"]
    return as_result("throughput", llm, workload.description, {**result, "repeats": repeats})


def _admissible(llm: LLM, workload: Workload) -> tuple[list[list[int]], list[int], int]:
    """The requests that the engine can take, and how many it cannot. Only their lengths decide, so prompts are drawn
    for those alone: one that is far too long would fill the memory before it is refused."""
    lens = list(zip(workload.input_lens, workload.output_lens, strict=True))
    kept = [index for index, pair in enumerate(lens) if _fits(llm, *pair)]
    if not kept:
        raise WorkbenchError(
            f"all {len(lens)} requests are too long for max_model_len={llm.config.max_model_len} or the "
            f"pool of {llm.config.num_kv_blocks} blocks: shorten them"
        )
    vocab_size = llm.model_config.vocab_size
    prompts = [workload.prompt(index, vocab_size) for index in kept]
    return prompts, [lens[index][1] for index in kept], len(lens) - len(kept)


def _fits(llm: LLM, input_len: int, output_len: int) -> bool:
    try:
        llm.engine.scheduler.max_num_tokens(input_len, output_len)
    except UsageError:
        return False
    return True


def _ours(llm: LLM, prompts: list[list[int]], lens: list[int]) -> tuple[dict[str, Any], Answers]:
    traces: list[StepTrace] = []
    llm.engine.listeners.append(traces.append)
    try:
        params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lens]
        llm.engine.reset_prefix_cache()
        outputs = llm.generate(prompts, params, use_tqdm=False)
    finally:
        llm.engine.listeners.remove(traces.append)
    return serving_metrics(traces), [output.token_ids for output in outputs]


def _theirs(serve: Serve, prompts: list[list[int]], lens: list[int], ours: Answers) -> dict[str, Any]:
    start = time.perf_counter()
    answers = serve(prompts, lens)
    duration = time.perf_counter() - start
    tokens = sum(map(len, answers))
    return {
        "output_throughput": tokens / duration,
        "duration": duration,
        "total_output_tokens": tokens,
        "same_answers": sum(a == b for a, b in zip(answers, ours, strict=True)),
    }


def _peers(llm: LLM, config: EngineConfig, vs: str | None) -> dict[str, Serve]:
    if vs is None:
        return {}
    decoder = llm.runner.decoder
    model = transformers_model(model_source(config), config.load_format, decoder.dtype, decoder.device, config.seed)
    peer = TransformersPeer(model)
    serves: dict[str, Serve] = {"generate": peer.generate, "generate_batch": peer.generate_batch}
    return serves


def _median(ran: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(peer[key] for peer in ran))
