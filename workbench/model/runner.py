"""ModelRunner: turns a plan into one variable-length batch, runs the decoder once and samples. It decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch

from workbench.attention.interface import AttentionBatch
from workbench.attention.triton import Triton
from workbench.model.batch import Batch
from workbench.model.batch_invariant import query_by_query
from workbench.model.captured import CapturedSteps, TapeRecorder
from workbench.model.cost import StepCost
from workbench.model.decoder import Decoder
from workbench.model.kv_cache import KVCache, move_blocks
from workbench.model.logprobs import logprobs_of
from workbench.model.sampling import sample
from workbench.plan import Logprobs, RequestView, StepPlan, StepResult

if TYPE_CHECKING:
    from kernels.triton.cascade import SharedHead

PROMPT_LOGPROB_ROWS = 128
"""Rows of logits held at once for prompt_logprobs: a row is as long as the vocabulary."""


class _Prompt(NamedTuple):
    """A prompt without an engine around it."""

    token_ids: list[int]
    block_table: list[int]


class ModelRunner:
    """Runs ``decoder`` over the paged ``cache``. Holds nothing of a request between steps."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        cost: StepCost,
        now: Callable[[], float] = time.perf_counter,
        captured: CapturedSteps | None = None,
        recorder: TapeRecorder | None = None,
        sampling_maker: str = "auto",
        batch_invariant: bool = False,
    ) -> None:
        """``now``: seconds, for the phases of a step. ``captured``: who carries out decode steps, and ``recorder``: who
        carries out all others in one call; None: they are carried out operation by operation. ``sampling_maker``: who
        samples, see `kernels`. ``batch_invariant``: prompts are attended query by query."""
        self.decoder = decoder
        self.cache = cache
        self.cost = cost
        self.now = now
        self.captured = captured
        self.recorder = recorder
        self.sampling_maker = sampling_maker
        self.batch_invariant = batch_invariant
        self.stores = {"pool": cache}
        """By the names that a `Move` gives them."""

    def provide_host(self, num_blocks: int) -> None:
        """Makes sure that plans may move blocks to at least so many in the host's memory."""
        pool, host = self.cache, self.stores.get("host")
        if host is None or host.num_blocks < num_blocks:
            config, dtype, pinned = self.decoder.config, pool.storage.dtype, self.decoder.device.type == "cuda"
            cpu = torch.device("cpu")
            self.stores["host"] = KVCache(config, num_blocks, pool.block_size, dtype, cpu, pinned)
            if host is not None:
                self.stores["host"].storage[:, : host.num_blocks] = host.storage

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Computes every scheduled token; samples for each request that has caught up."""
        begin = self.now()
        self.cache.lend_to(plan.pool, plan.continues)
        move_blocks(self.stores, plan.moves)
        moved_bytes = len(plan.moves) * self.cache.block_bytes
        if not plan.scheduled:
            return StepResult((), phases={"prepare": self.now() - begin}, moved_bytes=moved_bytes)
        batch, hidden, logits = None, None, None
        if self.captured is not None and self.captured.serves(plan):
            self.cache.copy_blocks(plan.copies)
            prepared = self.now()
            logits = self.captured.run(plan)
        else:
            batch = self.prepare(plan)
            prepared = self.now()
            hidden, logits = self.forward(plan, batch)
        self._synchronize()
        computed = self.now()
        sampling = [item.request for item in plan.scheduled if item.samples]
        chosen = sample(logits, sampling, self.sampling_maker).tolist() if logits is not None else []
        sampled = iter(zip(chosen, self._logprobs(logits, chosen, sampling), strict=True))
        pairs = [next(sampled) if item.samples else (None, None) for item in plan.scheduled]
        # A captured step computes no prompt.
        prompt_logprobs = [] if batch is None or hidden is None else self._prompt_logprobs(plan, hidden)
        done = self.now()
        flops, num_bytes = self.cost.of(plan)
        if batch is not None:
            num_bytes -= self.cost.spared_bytes(batch.attention.tokens_spared)
        phases = {"prepare": prepared - begin, "forward": computed - prepared, "sample": done - computed}
        return StepResult(
            [token_id for token_id, _ in pairs],
            flops,
            num_bytes,
            phases,
            [found for _, found in pairs],
            prompt_logprobs,
            moved_bytes,
        )

    # The two halves of a step that never look at a value. So nothing in them waits for the device, and they also run on
    # tensors that hold nothing.

    def prepare(self, plan: StepPlan) -> Batch:
        """The plan as one variable-length batch on the model's device."""
        return self._batch(
            [(item.request, item.start, item.num_tokens) for item in plan.scheduled],
            [item.samples for item in plan.scheduled],
            self.cache.block_size,
        )

    def forward(self, plan: StepPlan, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs the decoder once over the plan's batch, after its block copies; writes the cache.

        Hidden states ``[num_tokens, hidden_size]``, and logits ``[num_sampled, vocab_size]`` float32, None where no
        request has caught up.
        """
        self.cache.copy_blocks(plan.copies)
        if self.recorder is None:
            hidden = self.decoder.forward(batch, self.cache)
        else:
            hidden = self.recorder.once(lambda: self.decoder.forward(batch, self.cache))
        logits = self.decoder.logits(hidden[batch.sampled_rows]) if any(i.samples for i in plan.scheduled) else None
        return hidden, logits

    def _logprobs(
        self, logits: torch.Tensor | None, chosen: list[int], requests: list[RequestView]
    ) -> list[Logprobs | None]:
        found: list[Logprobs | None] = [None] * len(chosen)
        for row, (token_id, request) in enumerate(zip(chosen, requests, strict=True)):
            if logits is not None and request.params.logprobs is not None:
                found[row] = logprobs_of(logits[row : row + 1], [token_id], request.params.logprobs)[0]
        return found

    def _prompt_logprobs(self, plan: StepPlan, hidden: torch.Tensor) -> list[list[Logprobs]]:
        """For each scheduled request that wants them, those of the prompt tokens that its new hidden states predict."""
        found: list[list[Logprobs]] = []
        rows = accumulate((item.num_tokens for item in plan.scheduled), initial=0)
        for item, row in zip(plan.scheduled, rows, strict=False):
            request, wanted = item.request, item.request.params.prompt_logprobs
            found.append([])
            if wanted is None:
                continue
            # Position p predicts token p + 1. What was told before a preemption is not told again.
            first = max(item.start, request.num_prompt_logprobs)
            last = min(item.start + item.num_tokens, request.num_prompt_tokens - 1)
            for begin in range(first, last, PROMPT_LOGPROB_ROWS):
                end = min(begin + PROMPT_LOGPROB_ROWS, last)
                logits = self.decoder.logits(hidden[row + begin - item.start : row + end - item.start])
                found[-1] += logprobs_of(logits, request.token_ids[begin + 1 : end + 1], wanted)
        return found

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits after every token of one prompt, ``[len(token_ids), vocab_size]`` float32.

        The prompt goes through a paged cache of its own; the engine's pool is not touched.
        """
        block_size = self.cache.block_size
        num_blocks = -(-len(token_ids) // block_size)
        cache = KVCache(self.decoder.config, num_blocks, block_size, self.cache.storage.dtype, self.decoder.device)
        prompt = _Prompt(token_ids, list(range(num_blocks)))
        batch = self._batch([(prompt, 0, len(token_ids))], [True], block_size)
        return self.decoder.logits(self.decoder.forward(batch, cache))

    def _batch(
        self, items: list[tuple[RequestView | _Prompt, int, int]], samples: list[bool], block_size: int
    ) -> Batch:
        device = self.decoder.device
        token_ids: list[int] = []
        query_start = [0]
        for request, start, num_tokens in items:
            token_ids += request.token_ids[start : start + num_tokens]
            query_start.append(len(token_ids))
        width = max(len(request.block_table) for request, _, _ in items)
        tables = torch.tensor(
            [
                request.block_table + request.block_table[:1] * (width - len(request.block_table))
                for request, _, _ in items
            ]
        )
        starts = torch.tensor([start for _, start, _ in items])
        counts = torch.tensor([num_tokens for _, _, num_tokens in items])
        owner = torch.repeat_interleave(torch.arange(len(items)), counts, output_size=len(token_ids))
        positions = torch.arange(len(token_ids)) - torch.tensor(query_start)[owner] + starts[owner]
        slots = tables[owner, positions // block_size] * block_size + positions % block_size
        rows = [end - 1 for end, wanted in zip(query_start[1:], samples, strict=True) if wanted]
        seq_lens = [start + num for _, start, num in items]
        shared: Sequence[SharedHead] = ()
        if isinstance(self.decoder.attention, Triton):
            host_tables = [request.block_table for request, _, _ in items]
            shared = self.decoder.attention.shared_heads(host_tables, query_start, seq_lens, block_size)
        attention = AttentionBatch(
            query_start,
            seq_lens,
            tables.to(device),
            block_size,
            self.cache.token_bytes,
            starts=torch.tensor(query_start, dtype=torch.int32).to(device),
            lengths=(starts + counts).to(device, torch.int32),
            shared=shared,
        )
        return Batch(
            token_ids=torch.tensor(token_ids).to(device),
            positions=positions.to(device),
            slots=slots.to(device),
            attention=query_by_query(attention) if self.batch_invariant else attention,
            sampled_rows=torch.tensor(rows, dtype=torch.int64).to(device),
        )

    def _synchronize(self) -> None:
        if self.decoder.device.type == "cuda":
            torch.cuda.synchronize(self.decoder.device)
