"""``bench peers``: makes ready, takes the rounds and says what came of them, as one result."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from workbench.config import EngineConfig
from workbench.errors import UsageError, WorkbenchError
from workbench.llm import model_source
from workbench.machine import free_memory, num_cpus
from workbench.measure.load import SCHEMA_VERSION
from workbench.measure.peers import limits
from workbench.measure.peers.rounds import Rounds, figures, ratio, same_tokens
from workbench.measure.peers.systems import REFERENCE, Request, System, our_systems, peer_systems
from workbench.measure.peers.workloads import Job, jobs
from workbench.measure.provenance import provenance
from workbench.model.config import ModelConfig
from workbench.model.weights import read_model_config
from workbench.text.default_text import DEFAULT_TEXT

SPARE_MEMORY = 0.9
"""The share of free memory that all systems together may take."""
QUALITY_TOKENS = 400


def run(
    model: str,
    ours: Sequence[str],
    peers: Sequence[str],
    workloads: Sequence[str],
    rounds: int,
    threads: int | None,
    seed: int = 0,
    fresh: bool = False,
    timeout: float = 1800.0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The whole comparison. Raises UsageError for names that are none and a model that is too small for a workload, and
    WorkbenchError if not a single system could be measured; whatever else fails stands in the result with its reason.
    """
    source = model_source(EngineConfig(model=model))
    if not isinstance(source, Path):
        raise UsageError(f"model={model!r} has no weights here; name one that has")
    config = read_model_config(source, "auto")
    config.require_supported()
    asked = jobs(workloads, config.vocab_size, seed)
    for job in asked:
        if job.longest > config.max_position_embeddings:
            raise UsageError(
                f"workload {job.name} needs {job.longest} tokens a request and {model} has "
                f"{config.max_position_embeddings}: leave it out with --workloads"
            )
    request = Request(model, source, config, asked, threads or num_cpus())
    systems, missing = our_systems(request, ours)
    theirs, not_there = peer_systems(request, peers, fresh, say)
    systems += theirs
    missing |= not_there
    needed, free = sum(system.memory for system in systems), free_memory()
    together = needed <= SPARE_MEMORY * free
    say(f"{len(systems)} systems, about {needed / 1e9:.1f} of {free / 1e9:.1f} GB free: loaded {_loaded(together)}")
    before = limits.ceilings(request.threads)
    with tempfile.TemporaryDirectory(prefix="workbench-peers-") as scratch:
        measured = Rounds(systems, asked, rounds, timeout, Path(scratch), _quality_ids(source, config, seed), say)
        measured.run(together)
    after = limits.ceilings(request.threads)
    told = _result(measured, systems, missing, config, before, after)
    if not any(told["results"].values()):
        reasons = "; ".join(f"{name}: {one['error']}" for name, one in told["systems"].items())
        raise WorkbenchError(f"no system could be measured: {reasons}")
    return told | {
        "benchmark": "peers",
        "schema_version": SCHEMA_VERSION,
        "interrupted": measured.interrupted,
        "loaded": _loaded(together),
        "config": {"model": model, "rounds": rounds, "threads": request.threads, "seed": seed},
        "provenance": provenance(torch.device("cpu")) | {"threads": request.threads},
    }


def _loaded(together: bool) -> str:
    return "together" if together else "in turn"


def _quality_ids(source: Path, config: ModelConfig, seed: int) -> list[int]:
    """The text's tokens; of a model without a tokenizer, ids drawn with the seed."""
    from workbench.text.tokenizer import Tokenizer

    try:
        ids = Tokenizer.from_source(source).encode(DEFAULT_TEXT)
    except (WorkbenchError, UsageError, OSError):
        chance = random.Random(f"{seed} quality")
        ids = [chance.randrange(config.vocab_size) for _ in range(QUALITY_TOKENS)]
    return ids[: min(QUALITY_TOKENS, config.max_position_embeddings)]


def _result(
    measured: Rounds,
    systems: Sequence[System],
    missing: dict[str, str],
    config: ModelConfig,
    before: dict[str, float],
    after: dict[str, float],
) -> dict[str, Any]:
    rates = limits.better(before, after)
    found, asked = measured.found, measured.jobs
    described = {system.name: _describe(system, measured, config) for system in systems}
    results: dict[str, dict[str, Any]] = {job.name: {} for job in asked}
    for job in asked:
        for system in systems:
            if figure := figures(found[system.name], job):
                weight_bytes = described[system.name]["weight_bytes"]
                figure["of_limit"] = limits.of_limit(job, figure, weight_bytes, config, rates)
                results[job.name][system.name] = figure
    pairs = [(one.name, other.name) for one in systems if one.ours for other in systems if not other.ours]
    ratios = {f"{job.name}/{a}/{b}": ratio(found[a], found[b], job) for job in asked for a, b in pairs}
    return {
        "systems": described | {name: {"error": why} for name, why in missing.items()},
        "workload": {job.name: job.describe() for job in asked},
        "results": results,
        "ratios": {name: value for name, value in ratios.items() if value is not None},
        "equal_quality": [
            {"ours": a, "peer": b, "precision": described[a]["precision"]}
            for a, b in pairs
            if described[a]["precision"] == described[b]["precision"]
        ],
        "others": max(
            (share for bars in results.values() for one in bars.values() for share in one["others"] if share),
            default=0.0,
        ),
        "ceilings": {"before": before, "after": after, "used": rates, "quality_tokens": len(measured.quality_ids)},
    }


def _describe(system: System, measured: Rounds, config: ModelConfig) -> dict[str, Any]:
    found = measured.found[system.name]
    # What a system says of itself counts; it may say more than what was known before it was loaded.
    known = {"weight_bytes": system.weight_bytes, **found.info}
    first: Job | None = next((job for job in measured.jobs if job.name == "a"), None)
    return {
        "package": system.package,
        "ours": system.ours,
        "precision": limits.precision_class(known["weight_bytes"], config),
        **known,
        "threads": system.options["threads"],
        "kl": found.kl,
        "equal_top": found.equal_top,
        "equal_tokens": same_tokens(found, measured.found[REFERENCE], first.name) if first else None,
        "load_seconds": found.load_seconds,
        "idle_cpu": found.idle_cpu,
        "error": found.error,
    }
