"""A tiny real model under every policy: the same tokens, whoever waits for whom and whatever is moved where."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_llm import assert_empty, open_llm
from workbench import SamplingParams
from workbench.engine.clock import VirtualClock
from workbench.engine.engine import Engine
from workbench.errors import UsageError, WorkbenchError
from workbench.model.config import ModelConfig
from workbench.model.kv_cache import KVCache, move_blocks
from workbench.plan import Move
from workbench.sizing import resolve_num_host_kv_blocks

JOBS = [
    ([3 + i] * length, SamplingParams(temperature=i % 2, seed=i, max_tokens=count, ignore_eos=True))
    for i, (length, count) in enumerate([(5, 12), (17, 3), (1, 15), (9, 9), (30, 1), (4, 14)])
]
TIGHT = {"num_kv_blocks": 9, "max_num_batched_tokens": 32, "max_num_seqs": 4}
"""32 tokens for the longest prompt in one step; 9 blocks of 4 for it and little beside it."""


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[list[int]]:
    llm = open_llm(folder)
    return [llm.generate(prompt, params, use_tqdm=False)[0].token_ids for prompt, params in JOBS]


def serve(folder: Path, **options: Any) -> tuple[list[list[int]], dict[str, int]]:
    llm = open_llm(folder, **{**TIGHT, **options})
    totals = {"preempted": 0, "swapped_in": 0, "held": 0}

    def count(trace: Any) -> None:
        llm.engine.pool.check()
        moved = trace.blocks["swapped_out"] + trace.blocks["swapped_in"]
        assert trace.moved_bytes == moved * llm.runner.cache.storage[:, 0].nbytes
        totals["preempted"] += len(trace.preempted)
        totals["swapped_in"] += trace.blocks["swapped_in"]
        totals["held"] += len(trace.held)

    llm.engine.listeners.append(count)
    outputs = llm.generate([prompt for prompt, _ in JOBS], [params for _, params in JOBS], use_tqdm=False)
    assert_empty(llm)
    return [output.token_ids for output in outputs], totals


@pytest.mark.parametrize("batching", ["continuous", "static", "dynamic", "prefill-first"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_same_tokens_under_every_policy(folder: Path, alone: list[list[int]], batching: str, mode: str) -> None:
    preempted = 0
    for policy, chunked in product(["fcfs", "shortest-prefill-first"], [True, False]):
        options = {"scheduling_policy": policy, "enable_chunked_prefill": chunked}
        answers, totals = serve(folder, batching=batching, preemption_mode=mode, **options)
        assert answers == alone, options
        assert (totals["held"] > 0) == (batching in ("static", "dynamic"))
        assert (totals["swapped_in"] > 0) == (mode == "swap" and totals["preempted"] > 0)
        preempted += totals["preempted"]
    assert preempted > 0


def test_the_same_tokens_when_priorities_push_each_other_aside(folder: Path, alone: list[list[int]]) -> None:
    for mode in ("recompute", "swap"):
        llm = open_llm(folder, scheduling_policy="priority", preemption_mode=mode, **TIGHT)
        requests = []
        for number, (prompt, params) in enumerate(JOBS):
            name = llm.engine.add_request(prompt, params, priority=-number)
            requests.append(llm.engine.requests[name])
            llm.engine.step()
            llm.engine.step()
        while llm.engine.has_unfinished():
            llm.engine.step()
            llm.engine.pool.check()
        assert sum(request.num_displaced for request in requests) > 0
        assert [request.output_token_ids for request in requests] == alone


def test_static_batching_of_fewer_prompts_than_seats_ends(folder: Path, alone: list[list[int]]) -> None:
    clock = VirtualClock()
    llm = open_llm(folder, clock=clock, batching="static", max_num_seqs=8)
    llm.engine.listeners.append(lambda trace: clock.advance(0.5))
    outputs = llm.generate([prompt for prompt, _ in JOBS[:5]], [params for _, params in JOBS[:5]], use_tqdm=False)
    assert [output.token_ids for output in outputs] == alone[:5]
    # Fifteen steps begin at 0, 0.5, … 7: all return with the slowest, and each token came when it came.
    assert [output.metrics.e2e for output in outputs] == [7.0] * 5
    assert [output.metrics.tpot for output in outputs] == [0.5, 0.5, 0.5, 0.5, None]


def test_an_engine_over_the_same_model_may_swap(folder: Path, alone: list[list[int]]) -> None:
    """Opened later, with another policy; and nobody reads from the host what another engine has put there."""
    llm = open_llm(folder, **TIGHT)
    swapping, other = (llm.new_engine(preemption_mode="swap", num_host_kv_blocks=size) for size in (9, 20))

    def serve_with(engine: Engine) -> list[list[int]]:
        names = [engine.add_request(prompt, params) for prompt, params in JOBS]
        requests = [engine.requests[name] for name in names]
        while engine.has_unfinished():
            engine.step()
        assert engine.host is not None and engine.host.restored > 0
        return [request.output_token_ids for request in requests]

    assert serve_with(swapping) == serve_with(other) == alone
    for prompt, params in JOBS:
        swapping.add_request(prompt, params)
    assert swapping.host is not None
    while not swapping.host.tables:
        swapping.step()
    for request in list(swapping.scheduler.running):
        swapping.abort(request.request_id)
    other.add_request([1], JOBS[0][1])
    other.step()
    with pytest.raises(WorkbenchError, match="another engine has taken over"):
        swapping.step()


def test_moves_are_carried_out_one_after_the_other() -> None:
    """Against single copies: a block that one move has emptied is filled by the next, and read by a third."""
    config = ModelConfig.from_dict(
        {"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8}
    )  # fmt: skip
    cpu = torch.device("cpu")
    stores = {name: KVCache(config, 4, 2, torch.float32, cpu) for name in ("pool", "host")}
    for store in stores.values():
        store.storage.normal_()
    expected = {name: store.storage.clone() for name, store in stores.items()}
    moves = [
        Move("pool", 0, "host", 1), Move("pool", 3, "host", 2), Move("host", 0, "pool", 0), Move("host", 1, "pool", 3),
        Move("pool", 0, "host", 1),
    ]  # fmt: skip
    for move in moves:
        expected[move.target][:, move.to] = expected[move.source][:, move.block]
    move_blocks(stores, moves)
    assert all(torch.equal(stores[name].storage, expected[name]) for name in stores)


def test_the_host_holds_what_its_size_says(folder: Path) -> None:
    for options, blocks in (
        ({}, 9),
        ({"num_host_kv_blocks": 5}, 5),
        ({"kv_offload_host_gib": 2 / 1024}, (2 << 20) // open_llm(folder).runner.cache.storage[:, 0].nbytes),
    ):
        llm = open_llm(folder, num_kv_blocks=9, preemption_mode="swap", **options)
        assert llm.engine.host.num_blocks == llm.runner.stores["host"].num_blocks == blocks
    assert open_llm(folder).engine.host is None
    with pytest.raises(UsageError, match="kv_offload_host_gib=1e-09 does not hold one block"):
        open_llm(folder, preemption_mode="swap", kv_offload_host_gib=1e-9)
    assert resolve_num_host_kv_blocks(open_llm(folder).config, 7, 100) is None
