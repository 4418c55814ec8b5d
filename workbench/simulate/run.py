"""A whole load simulated: the keys of ``bench serve`` without what only a real run has, and a digest of every plan."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.engine.trace import StepTrace
from workbench.errors import WorkbenchError
from workbench.measure.drive import Drive, drive_steps
from workbench.measure.load import SCHEMA_VERSION, Load, described, rejections
from workbench.measure.metrics import ServingRecord
from workbench.measure.workload import Piece, Workload
from workbench.model.config import ModelConfig
from workbench.simulate.cost import Cost, as_cost_model
from workbench.simulate.runner import TrustedTokens, simulated_engine

NOT_SIMULATED = ("phases", "bookkeeping_share")
"""Keys of a measured result that tell of the engine's own work, which takes no virtual time."""


@dataclass(frozen=True, slots=True)
class NumberedPieces(Workload):
    """A workload whose tokens are the numbers of its pieces: equal pieces give equal tokens, and nothing is drawn.

    So a prompt of a thousand tokens costs a copy, and hash ids of a trace keep their meaning.
    """

    numbers: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    def prompt(self, index: int, vocab_size: int, answers: Mapping[int, Sequence[int]] | None = None) -> list[int]:
        parts: list[tuple[int, int]] = []
        for piece in self.asks[index].pieces:
            if isinstance(piece, Piece):
                # 0 is what a simulated model answers.
                parts.append((self.numbers.setdefault(piece.name, len(self.numbers) + 1), piece.length))
            else:
                parts += [(token_id, 1) for token_id in (answers or {})[piece.of]]
        return TrustedTokens(parts)


def numbered(workload: Workload) -> NumberedPieces:
    return NumberedPieces(workload.asks, workload.seed, workload.description, workload.users)


class PlanDigest:
    """A hash of what every step decided, without times: two runs with the same digest made the same plans."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, trace: StepTrace) -> None:
        self._hash.update(plan_line(trace).encode())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def plan_line(trace: StepTrace) -> str:
    """What a step decided, in one line."""
    scheduled = ",".join(
        [f"{s['request_id']}:{s['num_computed_tokens']}+{s['num_tokens']}{s['kind'][0]}" for s in trace.scheduled]
    )
    skipped = ",".join([f"{s['request_id']}:{s['reason']}" for s in trace.skipped])
    finished = ",".join([f"{s['request_id']}:{s['reason']}" for s in trace.finished])
    return f"{scheduled}|{skipped}|{','.join(trace.preempted)}|{finished}|{','.join(trace.held)}\n"


def simulated_steps(
    load: Load, cost: Cost, model_config: ModelConfig | None = None, told: Drive | None = None
) -> Iterator[StepTrace]:
    """The steps of a load, one after the other; ``told`` gets what else there is to tell."""
    engine = simulated_engine(load.config, cost, model_config)
    vocab_size = model_config.vocab_size if model_config else 1
    return drive_steps(engine, numbered(load.workload), vocab_size, load.max_concurrency, told=told)


def simulate(load: Load, cost: Cost, model_config: ModelConfig | None = None) -> dict[str, Any]:
    """Serves a load on the virtual clock. The result is the same to the last byte whenever it is run.

    Raises WorkbenchError when every request is rejected.
    """
    model = as_cost_model(cost)
    engine = simulated_engine(load.config, model, model_config)
    record, digest, told = ServingRecord(), PlanDigest(), Drive()
    vocab_size = model_config.vocab_size if model_config else 1
    for trace in drive_steps(engine, numbered(load.workload), vocab_size, load.max_concurrency, told=told):
        record.add(trace)
        digest.add(trace)
    if not told.answers:
        raise WorkbenchError(f"all {len(told.rejected)} requests are rejected; the first: {told.rejected[0].why}")
    found = record.result(len(told.rejected), load.slo, load.percentiles, engine.config.max_num_seqs)
    return {
        **{name: value for name, value in found.items() if name not in NOT_SIMULATED},
        "rejections": rejections(told),
        "benchmark": "simulate",
        "simulated": True,
        "schema_version": SCHEMA_VERSION,
        "config": engine.config.to_dict(),
        "workload": described(load),
        "cost_model": model.describe(),
        "digest": digest.hexdigest(),
    }
