"""Bugs put into the engine on purpose: the checks that pass on the true code must catch every one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.engine.checked import BrokenRule
from tests.engine.crowded import KINDS, exercise
from tests.engine.paged_fake import PagedFake
from workbench.config import EngineConfig
from workbench.engine import admission, policies
from workbench.engine.places import Joining
from workbench.engine.policies import Continuous, Static
from workbench.engine.request import Request, Status
from workbench.engine.scheduler import Scheduler
from workbench.kv.block_store import BlockStore
from workbench.kv.pool import BlockPool, OutOfBlocks
from workbench.plan import Move, StepPlan, StepResult

CAUGHT = (AssertionError, OutOfBlocks, IndexError, KeyError)
"""A broken rule or, where the bug breaks the engine before any check is reached, its own error."""


def exercise_all(kinds: list[dict[str, Any]] = KINDS) -> None:
    for options in kinds:
        for seed in range(4):
            exercise(seed, **options)


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
        self.waiting.remove(request)

    patch.setattr(Scheduler, "_preempt", losing)


def resumed_last(patch: pytest.MonkeyPatch) -> None:
    """A preempted request goes to the end of the queue, where newcomers overtake it."""
    preempt = Scheduler._preempt

    def last(self: Scheduler, request: Request, plan: StepPlan) -> None:
        preempt(self, request, plan)
        self.waiting.remove(request)
        self.waiting.append(request)

    patch.setattr(Scheduler, "_preempt", last)


def budget_overrun(patch: pytest.MonkeyPatch) -> None:
    """Newcomers get the whole budget, whatever running requests have taken of it."""
    shares = Scheduler._shares

    def generous(self: Scheduler, served: list[Request], needs: list[int], joining: list[Joining]) -> list[int]:
        return shares(self, served, needs, []) + shares(self, [], [], joining)

    patch.setattr(Scheduler, "_shares", generous)


def too_many_seqs(patch: pytest.MonkeyPatch) -> None:
    init = Scheduler.__init__

    def generous(self: Scheduler, *args: object) -> None:
        init(self, *args)  # type: ignore[arg-type]
        self.max_num_seqs += 1

    patch.setattr(Scheduler, "__init__", generous)


def idle_while_others_wait(patch: pytest.MonkeyPatch) -> None:
    """Static batching by mistake: nobody joins while anybody runs."""
    patch.setattr(Continuous, "may_join", lambda self, waiting, running, now: 0 if running else len(waiting))


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


def host_keeps_the_aborted(patch: pytest.MonkeyPatch) -> None:
    """An aborted request's blocks stay in the host's store."""
    patch.setattr(BlockStore, "drop", lambda self, owner: None)


def not_brought_back(patch: pytest.MonkeyPatch) -> None:
    """A request comes back from the host and its blocks do not."""
    restore = BlockStore.restore

    def forgetful(self: BlockStore, owner: str, pool: BlockPool) -> list[Move]:
        restore(self, owner, pool)
        return []

    patch.setattr(BlockStore, "restore", forgetful)


def brought_back_in_disorder(patch: pytest.MonkeyPatch) -> None:
    restore = BlockStore.restore

    def disorderly(self: BlockStore, owner: str, pool: BlockPool) -> list[Move]:
        moves = restore(self, owner, pool)
        targets = [move.to for move in reversed(moves)]
        return [move._replace(to=to) for move, to in zip(moves, targets, strict=True)]

    patch.setattr(BlockStore, "restore", disorderly)


def too_few_saved(patch: pytest.MonkeyPatch) -> None:
    """The block that is not full is left behind."""
    save = BlockStore.save
    patch.setattr(BlockStore, "save", lambda self, owner, pool, count: save(self, owner, pool, max(1, count - 1)))


def lost_moves(patch: pytest.MonkeyPatch) -> None:
    """After a failed step it is believed that its moves were made."""
    patch.setattr(Scheduler, "rollback", lambda self, plan: None)


def thrash(patch: pytest.MonkeyPatch) -> None:
    """Who was preempted comes back as soon as its first chunk fits, and is sent away before it has caught up."""
    patch.setattr(admission, "growth", lambda *args: 0)


def decodes_stand_behind_prompts(patch: pytest.MonkeyPatch) -> None:
    """Decodes get what a long prompt leaves of the budget, and not the other way round."""

    def prompts_first(
        needs: Sequence[int], budget: int, limit: int, whole: bool = False, true: Any = policies.share
    ) -> list[int]:
        order = sorted(range(len(needs)), key=lambda i: -needs[i])
        given = true([needs[i] for i in order], budget, limit, whole)
        return [given[order.index(i)] for i in range(len(needs))]

    patch.setattr(policies, "share", prompts_first)


def inversion(patch: pytest.MonkeyPatch) -> None:
    """All seats taken by requests of low priority stay theirs until they end."""
    patch.setattr(Scheduler, "_displace", lambda self, plan: None)


def queue_too_short_for_a_batch(patch: pytest.MonkeyPatch) -> None:
    """A batch waits for more requests than may queue."""
    init = Static.__init__

    def larger(self: Static, config: EngineConfig) -> None:
        init(self, config)
        self.batch_size = config.max_num_seqs

    patch.setattr(Static, "__init__", larger)


def answers_never_returned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Static, "is_done", lambda self, running, waiting: False)


def hoarding(patch: pytest.MonkeyPatch) -> None:
    """Complete answers keep their blocks even where another member of the batch cannot go on without."""
    patch.setattr(Scheduler, "_free", lambda self, num_blocks, head=(): self._can_have(num_blocks, head))


def cut_although_whole(patch: pytest.MonkeyPatch) -> None:
    true = policies.share
    patch.setattr(policies, "share", lambda needs, budget, limit, whole: true(needs, budget, limit))


@pytest.mark.parametrize(
    ("bug", "rule"),
    [
        (leaked_block, "counts 1 references and 0 tables hold it"),
        (double_free, "free list twice|free and in use"),
        (abort_keeps_blocks, "tables hold it"),
        (page_too_few, "has room|needs|list index out of range"),
        (page_too_many, "holds . blocks and needs|is served in every step|has room"),
        (page_misread, "answers as it would alone"),
        (stale_position, "counts what was computed|samples when caught up"),
        (lost_resume, "has nothing in the cache|goes on where it stood"),
        (lost_request, "lost or doubled"),
        (resumed_last, "overtaken"),
        (budget_overrun, "the budget is overrun"),
        (too_many_seqs, "max_num_seqs"),
        (idle_while_others_wait, "waits although resources are free"),
        (one_token_too_many, "goes on past its end|answers as it would alone"),
        (doubled_token, "the trace tells every token|samples when caught up"),
        (stop_before_min_tokens, ": stop"),
        (aborted_still_runs, "lost or doubled"),
        (host_keeps_the_aborted, "only who waits is kept by the host"),
        (not_brought_back, "answers as it would alone"),
        (brought_back_in_disorder, "answers as it would alone"),
        (too_few_saved, "has nothing in the cache but|answers as it would alone"),
        (lost_moves, "answers as it would alone"),
        (thrash, "has a token to show since it was preempted"),
        (decodes_stand_behind_prompts, "gets a token in every step|waits although"),
        (inversion, "waits for .* to end"),
        (queue_too_short_for_a_batch, "a step serves somebody"),
        (answers_never_returned, "everything ends within|a step serves somebody"),
        (hoarding, "a step serves somebody|everything ends within|goes on where it stood"),
        (cut_although_whole, "computed whole or not at all"),
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
