"""Requests given by their lengths: what rules of reservation make of them, as bars, and the engine serving them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.kv.pool import BlockPool
from workbench.lab.plots import stacked_bars
from workbench.lab.snapshot import Watch
from workbench.lab.table import Cell, Table
from workbench.measure.contiguous import ALLOCATORS
from workbench.measure.kv_waste import RULES, Demand, Waste, page, reserve
from workbench.measure.workload import piece_tokens
from workbench.sampling_params import SamplingParams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from workbench.lab.lesson import Lesson
    from workbench.llm import LLM

PARTS = ("tokens", "reserved", "internal", "external")
"""What a slot of the memory does, as in figure 2 of PagedAttention; together all slots."""
BLOCK_SIZE = 16


def compare_rules(load: Sequence[Demand], slots: int, longest: int, allocator: str = "buddy") -> dict[str, Waste]:
    """The same requests in the same memory, by each of `RULES` and by paging in blocks of 16."""
    found = {name: reserve(load, ALLOCATORS[allocator](slots), rule, longest) for name, rule in RULES.items()}
    return found | {"paging": page(load, BlockPool(slots // BLOCK_SIZE, BLOCK_SIZE))}


def waste_bars(found: Mapping[str, Waste], title: str) -> Figure:
    """A bar for each rule: what its slots did while somebody waited, and how many requests ran at once."""
    rows = {
        f"{rule}: {one.share('tokens'):.1%} tokens,\n{one.at_once:.1f} requests": {
            part: 100 * one.share(part) for part in PARTS
        }
        for rule, one in found.items()
    }
    return stacked_bars(rows, "% of KV memory while somebody waits", title)


def serve(lesson: Lesson, llm: LLM, demands: Sequence[Demand | tuple[int, int]], **limits: Any) -> Watch:
    """Requests of so many prompt and answer tokens, all there at the start, through an engine of the lesson until all
    are done. They are called A, B, …; the pool is checked after every step."""
    engine = lesson.engine(llm, **limits)
    for number, (prompt, answer) in enumerate(demands):
        tokens = piece_tokens(lesson.seed, f"demand {number}", prompt, llm.model_config.vocab_size)
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        engine.add_request(tokens, params, request_id=_letters(number))
    with Watch(engine) as run:
        while engine.has_unfinished():
            engine.step()
            engine.pool.check()
    return run


def tables_by_step(run: Watch, most: int = 12) -> Table:
    """The block table of each request after each of the first ``most`` steps."""
    names = list(dict.fromkeys(name for one in run.snapshots for name in one.tables))
    rows: list[list[Cell | str | int]] = [
        [trace.step, *(" ".join(map(str, one.tables.get(name, ()))) or "–" for name in names)]
        for trace, one in zip(run.traces[:most], run.snapshots[:most], strict=True)
    ]
    size = run.snapshots[0].block_size
    return Table(["after step", *names], rows, f"the blocks of each request in the order of its tokens, {size} to each")


def _letters(number: int) -> str:
    """A … Z, then A1 … Z1, and so on."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")
