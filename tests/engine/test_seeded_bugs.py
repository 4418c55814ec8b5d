"""Bugs put into the engine on purpose: the checks that pass on the true code must catch every one of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.engine.checked import BrokenRule, CheckedEngine
from tests.engine.paged_fake import VOCAB_SIZE, PagedFake, open_engine
from workbench.engine.request import Request, Status
from workbench.engine.scheduler import Scheduler
from workbench.kv.pool import BlockPool, OutOfBlocks
from workbench.plan import StepPlan, StepResult
from workbench.sampling_params import SamplingParams

CAUGHT = (AssertionError, OutOfBlocks, IndexError, KeyError)
"""A broken rule or, where the bug breaks the engine before any check is reached, its own error."""


def exercise(seed: int) -> None:
    """A crowded engine with arrivals, aborts and preemptions, every step checked, until all is done."""
    draw = Random(seed)
    engine = open_engine(
        (5,), num_kv_blocks=9, block_size=3, max_model_len=28, max_num_batched_tokens=7, max_num_seqs=3
    )
    checked = CheckedEngine(engine, (5,))
    for _ in range(50):
        if draw.random() < 0.6:
            length = draw.randint(1, 15)
            most = draw.choice([None, draw.randint(1, 28 - length)])
            params = SamplingParams(max_tokens=most, min_tokens=draw.choice([0, 0, min(most or 3, 3)]))
            checked.add([draw.randrange(VOCAB_SIZE) for _ in range(length)], params)
        if engine.requests and draw.random() < 0.15:
            checked.abort(draw.choice(list(engine.requests)))
        checked.step()
    checked.drain()
    assert sum(checked.num_preempted.values()) > 3


def exercise_all() -> None:
    for seed in range(4):
        exercise(seed)


def test_the_true_code_passes() -> None:
    exercise_all()


Patch = Callable[[pytest.MonkeyPatch], None]


def leaked_block(patch: pytest.MonkeyPatch) -> None:
    """The last block of a table does not go back."""
    release = BlockPool.release

    def leaky(self: BlockPool, owner: str) -> None:
        del self.tables[owner][-1:]
        release(self, owner)

    patch.setattr(BlockPool, "release", leaky)


def double_free(patch: pytest.MonkeyPatch) -> None:
    release = BlockPool.release

    def twice(self: BlockPool, owner: str) -> None:
        last = self.tables[owner][-1:]
        release(self, owner)
        self._free += last

    patch.setattr(BlockPool, "release", twice)


def abort_keeps_blocks(patch: pytest.MonkeyPatch) -> None:
    close = Scheduler._close

    def forgetful(self: Scheduler, request: Request, reason: str) -> None:
        table = self.pool.tables.get(request.request_id)
        close(self, request, reason)
        if reason == "abort" and table is not None:
            self.pool.tables[request.request_id] = table

    patch.setattr(Scheduler, "_close", forgetful)


def page_too_few(patch: pytest.MonkeyPatch) -> None:
    """Off by one at the edge of a block: a full block is taken to have room for one more token."""
    patch.setattr(BlockPool, "blocks_for", lambda self, num_tokens: -(-(num_tokens - 1) // self.block_size) or 1)


def page_too_many(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "blocks_for", lambda self, num_tokens: num_tokens // self.block_size + 1)


def page_misread(patch: pytest.MonkeyPatch) -> None:
    """A token is written to and read from the block of its neighbour when it is the last of its own."""

    def place(self: PagedFake, table: list[int], position: int) -> tuple[int, int]:
        return table[min((position + 1) // self.block_size, len(table) - 1)], position % self.block_size

    patch.setattr(PagedFake, "_place", place)


def stale_position(patch: pytest.MonkeyPatch) -> None:
    """A commit that counts a chunk as one token: the next step starts behind where it should."""
    commit = Scheduler.commit

    def stale(self: Scheduler, plan: StepPlan, result: StepResult, text_stops: Any = ()) -> list[Request]:
        plan = StepPlan([item._replace(num_tokens=1) for item in plan.scheduled])
        return commit(self, plan, result, text_stops)

    patch.setattr(Scheduler, "commit", stale)


def lost_resume(patch: pytest.MonkeyPatch) -> None:
    """A preempted request believes that its keys and values are still there."""
    preempt = Scheduler._preempt

    def believing(self: Scheduler, request: Request, plan: StepPlan) -> None:
        computed = request.num_computed_tokens
        preempt(self, request, plan)
        request.num_computed_tokens = computed

    patch.setattr(Scheduler, "_preempt", believing)


def lost_request(patch: pytest.MonkeyPatch) -> None:
    """A preempted request never comes back to the queue."""
    preempt = Scheduler._preempt

    def losing(self: Scheduler, request: Request, plan: StepPlan) -> None:
        preempt(self, request, plan)
        self.waiting.popleft()

    patch.setattr(Scheduler, "_preempt", losing)


def resumed_last(patch: pytest.MonkeyPatch) -> None:
    """A preempted request goes to the end of the queue, where newcomers overtake it."""
    preempt = Scheduler._preempt

    def last(self: Scheduler, request: Request, plan: StepPlan) -> None:
        preempt(self, request, plan)
        self.waiting.append(self.waiting.popleft())

    patch.setattr(Scheduler, "_preempt", last)


def budget_overrun(patch: pytest.MonkeyPatch) -> None:
    """Newcomers get the whole budget, whatever running requests have taken of it."""
    admit = Scheduler._admit_waiting
    patch.setattr(
        Scheduler, "_admit_waiting", lambda self, plan, budget: admit(self, plan, self.max_num_batched_tokens)
    )


def too_many_seqs(patch: pytest.MonkeyPatch) -> None:
    init = Scheduler.__init__

    def generous(self: Scheduler, *args: object) -> None:
        init(self, *args)  # type: ignore[arg-type]
        self.max_num_seqs += 1

    patch.setattr(Scheduler, "__init__", generous)


def idle_while_others_wait(patch: pytest.MonkeyPatch) -> None:
    """Static batching by mistake: nobody joins while anybody runs."""
    admit = Scheduler._admit_waiting
    patch.setattr(
        Scheduler, "_admit_waiting", lambda self, plan, budget: None if plan.scheduled else admit(self, plan, budget)
    )


def one_token_too_many(patch: pytest.MonkeyPatch) -> None:
    init = Request.__init__

    def longer(self: Request, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)  # type: ignore[arg-type]
        self.max_num_tokens += 1

    patch.setattr(Request, "__init__", longer)


def doubled_token(patch: pytest.MonkeyPatch) -> None:
    append = Request.append

    def twice(self: Request, token_id: int, text_stops: bool = False) -> str | None:
        reason = append(self, token_id, text_stops)
        if reason is None and self.num_output_tokens == 2:
            self.token_ids.append(token_id)
        return reason

    patch.setattr(Request, "append", twice)


def stop_before_min_tokens(patch: pytest.MonkeyPatch) -> None:
    def eager(self: Request, token_id: int, text_stops: bool = False) -> str | None:
        self.token_ids.append(token_id)
        if token_id in self.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) >= self.max_num_tokens else None

    patch.setattr(Request, "append", eager)


def aborted_still_runs(patch: pytest.MonkeyPatch) -> None:
    def lazy(self: Scheduler, request: Request) -> None:
        if request.status is Status.WAITING:
            self.waiting.remove(request)
        self._close(request, "abort")

    patch.setattr(Scheduler, "abort", lazy)


@pytest.mark.parametrize(
    ("bug", "rule"),
    [
        (leaked_block, "counts 1 references and 0 tables hold it"),
        (double_free, "free list twice|free and in use"),
        (abort_keeps_blocks, "tables hold it"),
        (page_too_few, "has room|needs|list index out of range"),
        (page_too_many, "holds . blocks and needs|is served in every step"),
        (page_misread, "answers as it would alone"),
        (stale_position, "counts what was computed|samples when caught up"),
        (lost_resume, "has nothing in the cache|goes on where it stood"),
        (lost_request, "lost, doubled or overtaken"),
        (resumed_last, "lost, doubled or overtaken"),
        (budget_overrun, "the budget is overrun"),
        (too_many_seqs, "max_num_seqs"),
        (idle_while_others_wait, "waits and is told why"),
        (one_token_too_many, "goes on past its end|answers as it would alone"),
        (doubled_token, "the trace tells every token|samples when caught up"),
        (stop_before_min_tokens, ": stop"),
        (aborted_still_runs, "lost, doubled or overtaken"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_seeded_bug_is_caught(bug: Patch, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        bug(patch)
        with pytest.raises(CAUGHT, match=rule):
            exercise_all()
    exercise(0)


def test_a_broken_rule_is_an_assertion() -> None:
    assert issubclass(BrokenRule, AssertionError)
