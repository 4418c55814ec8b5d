"""A runner without a model that still goes through the block tables.

Its "keys and values" are the token ids themselves, kept by block and row. The next token is a digest of everything read
back through the request's block table, so a wrong page, a stale position, a lost chunk or another request's block all
change what comes out, as they would with a model.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from workbench.config import EngineConfig
from workbench.engine.clock import VirtualClock
from workbench.engine.engine import Engine
from workbench.kv.pool import BlockPool
from workbench.plan import StepPlan, StepResult
from workbench.sampling_params import SamplingParams

VOCAB_SIZE = 40


def next_token(token_ids: Sequence[int | None], seed: int = 0) -> int:
    """What the fake model says after ``token_ids``."""
    return zlib.crc32(repr((list(token_ids), seed)).encode()) % VOCAB_SIZE


def answer_alone(
    prompt: Sequence[int], params: SamplingParams, limit: int, eos: Sequence[int] = (), seed: int = 0
) -> tuple[list[int], str]:
    """Output and finish reason of a request that has the machine to itself. ``limit``: most tokens, prompt included."""
    token_ids = list(prompt)
    if params.max_tokens is not None:
        limit = min(limit, len(prompt) + params.max_tokens)
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else eos)}
    while True:
        token_ids.append(next_token(token_ids, seed))
        output = token_ids[len(prompt) :]
        if output[-1] in stops and len(output) >= params.min_tokens:
            return output, "stop"
        if len(token_ids) == limit:
            return output, "length"


class PagedFake:
    """``before`` is called first in every step, ``during`` once the tables are read; the runner raises what they raise.

    Blocks that nobody holds are wiped in every step, so whoever reads one that was not brought back reads nothing.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.memory: dict[tuple[int, int], int] = {}
        self.host: dict[tuple[int, int], int] = {}
        self.pool: BlockPool | None = None
        self.before: Callable[[StepPlan], None] = lambda plan: None
        self.during: Callable[[StepPlan], None] = lambda plan: None

    def execute(self, plan: StepPlan) -> StepResult:
        self.before(plan)
        stores = {"pool": self.memory, "host": self.host}
        for move in plan.moves:
            for row in range(self.block_size):
                stores[move.target][move.to, row] = stores[move.source].get((move.block, row), -1)
        for source, target in plan.copies:
            for row in range(self.block_size):
                self.memory[target, row] = self.memory.get((source, row), -1)
        if self.pool is not None:
            kept = self.pool.is_kept
            self.memory = {place: token for place, token in self.memory.items() if kept(place[0])}
        for item in plan.scheduled:
            for position in range(item.start, item.start + item.num_tokens):
                place = self._place(item.request.block_table, position)
                self.memory[place] = item.request.token_ids[position]
        tokens: list[int | None] = []
        for item in plan.scheduled:
            table, end = item.request.block_table, item.start + item.num_tokens
            read = [self.memory.get(self._place(table, position)) for position in range(end)] if item.samples else []
            tokens.append(next_token(read, item.request.seed) if item.samples else None)
        self.during(plan)
        return StepResult(tokens, flops=plan.num_tokens, bytes=len(plan.scheduled))

    def _place(self, table: Sequence[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size


def open_engine(eos: Sequence[int] = (), **options: object) -> Engine:
    """An engine over a `PagedFake` and a virtual clock. Sizes are small and nothing is cached unless told otherwise."""
    sizes = {
        "enable_prefix_caching": False,
        "num_kv_blocks": 32,
        "block_size": 4,
        "max_model_len": 100,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
    }
    config = EngineConfig(**{**sizes, **options})
    runner = PagedFake(config.block_size)
    engine = Engine(config, runner, clock=VirtualClock(), eos_token_ids=eos, vocab_size=VOCAB_SIZE)
    runner.pool = engine.pool
    return engine


def greedy(max_tokens: int | None = 4, **options: object) -> SamplingParams:
    """Greedy and with seed 0, so that `next_token` needs no seed."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0, **options)
