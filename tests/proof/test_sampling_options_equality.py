"""Every sampling option gives the same answer however it is served, on the default model and its own text.

Tokens, text, finish reasons and log probabilities of requests with penalties, biases, min_p, stop strings, several
answers and log probabilities: alone, together, in chunks, in blocks of other sizes, preempted again and again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.proof.conftest import open_smollm2
from tests.proof.same_tokens import DRAW_TIE, TIE, Drawn, from_border
from workbench import LLM, SamplingParams
from workbench.engine.engine import FORK_SEED_STEP
from workbench.engine.request import Request
from workbench.engine.trace import StepTrace
from workbench.model.penalties import adjust
from workbench.outputs import CompletionOutput, RequestOutput
from workbench.plan import Logprobs

COUNT = 10
STORY = "When the ferry reached the island the rain had stopped, and the whole harbour smelled of wet rope. Mina"

# (prompt, greedy or seeded options). Repeated words, so that penalties have something to do.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("one two one two one two one", {"repetition_penalty": 1.3}),
    ("one two one two one two one", {"presence_penalty": 1.5, "frequency_penalty": 0.7}),
    ("The rain, the rain, the rain,", {"repetition_penalty": 1.2, "temperature": 0.8, "seed": 3}),
    ("서울은 한강을 따라", {"frequency_penalty": 1.1, "presence_penalty": -0.5, "temperature": 0.9, "seed": 4}),
    ("The capital of France is", {"logit_bias": {7042: -100.0, 260: 2.5}}),
    ("The capital of France is", {"logit_bias": {260: 3.0}, "min_p": 0.1, "temperature": 1.2, "seed": 5}),
    (STORY, {"min_p": 0.05, "top_k": 50, "top_p": 0.95, "temperature": 1.0, "seed": 6}),
    (STORY, {"n": 3, "temperature": 0.9, "seed": 7, "logprobs": 2}),
    ("1, 2, 3, 5, 8, 13,", {"n": 2, "temperature": 0.7, "seed": 8, "repetition_penalty": 1.1, "min_tokens": 4}),
    ("def add(a, b):\n    return", {"logprobs": 3, "prompt_logprobs": 2}),
    (STORY * 2, {"prompt_logprobs": 1, "logprobs": 0, "presence_penalty": 0.8, "temperature": 0.8, "seed": 9}),
]


@dataclass
class Tally:
    tokens: int = 0
    logprobs: int = 0
    ties: int = 0
    largest: float = 0.0
    """Difference of two log probabilities."""


@pytest.fixture(scope="module")
def jobs(smollm2: LLM) -> list[tuple[list[int], SamplingParams]]:
    """The cases, and two that end by a stop string: one that spans tokens, one with the string in the answer."""
    assert smollm2.tokenizer is not None
    common = {"temperature": 0.0, "max_tokens": COUNT, "ignore_eos": True}
    made = [(smollm2.tokenizer.encode(prompt), SamplingParams(**{**common, **own})) for prompt, own in CASES]
    for include, own in ((False, {}), (True, {"temperature": 0.9, "seed": 11})):
        params = SamplingParams(**{**common, **own})
        prompt = smollm2.tokenizer.encode(STORY)
        [plain] = smollm2.generate([prompt], params, use_tqdm=False)
        fifth, sixth = (smollm2.tokenizer.decode([token]) for token in plain.token_ids[5:7])
        stop = fifth[-1:] + sixth[:2]
        assert fifth and sixth and stop in plain.text, "the stop string must span two tokens"
        made.append(
            (prompt, SamplingParams(**common | own, stop=["never said", stop], include_stop_str_in_output=include))
        )
    return made


@pytest.fixture(scope="module")
def alone(smollm2: LLM, jobs: list[tuple[list[int], SamplingParams]]) -> list[RequestOutput]:
    """The reference: each request by itself, whole prompts."""
    found = [smollm2.generate([prompt], params, use_tqdm=False)[0] for prompt, params in jobs]
    assert [output.finish_reason for output in found] == ["length"] * len(CASES) + ["stop", "stop"]
    assert all(params.stop[1] in output.text for output, (_, params) in zip(found[-1:], jobs[-1:], strict=True))
    assert jobs[-2][1].stop[1] not in found[-2].text
    assert len({answer.text for output in found for answer in output.outputs}) > len(CASES), "answers that differ"
    return found


WAYS: list[tuple[str, dict[str, Any]]] = [
    ("together", {}),
    ("budget 5", {"max_num_batched_tokens": 5}),
    ("budget 17, blocks of 17", {"max_num_batched_tokens": 17, "block_size": 17}),
    ("two at a time, blocks of 1", {"max_num_seqs": 2, "block_size": 1, "num_kv_blocks": 2048}),
    ("a pool for two", {"block_size": 4, "num_kv_blocks": 24}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), WAYS, ids=[name for name, _ in WAYS])
def test_sampling_options_however_served(
    smollm2: LLM,
    jobs: list[tuple[list[int], SamplingParams]],
    alone: list[RequestOutput],
    name: str,
    options: dict[str, Any],
    proof: Any,
) -> None:
    llm, traces = open_smollm2(weights_of=smollm2, **options), list[StepTrace]()
    llm.engine.listeners.append(traces.append)
    llm.engine.listeners.append(lambda trace: llm.engine.pool.check())
    found = llm.generate([prompt for prompt, _ in jobs], [params for _, params in jobs], use_tqdm=False)
    assert llm.engine.pool.num_available == llm.engine.pool.num_blocks
    preemptions = sum(len(trace.preempted) for trace in traces)
    assert preemptions > 3 if name == "a pool for two" else max(len(trace.scheduled) for trace in traces) > 1
    tally = Tally()
    for index, ((_, params), one, other) in enumerate(zip(jobs, alone, found, strict=True)):
        where = f"{name}, request {index}"
        assert len(one.outputs) == len(other.outputs) == params.n
        for mine, theirs in zip(one.outputs, other.outputs, strict=True):
            compare(where, smollm2, one.prompt_token_ids, params, mine, theirs, tally)
        if params.prompt_logprobs is not None:
            assert one.prompt_logprobs is not None and other.prompt_logprobs is not None
            assert one.prompt_logprobs[0] is None and other.prompt_logprobs[0] is None
            compare_logprobs(where, one.prompt_logprobs[1:], other.prompt_logprobs[1:], tally)  # type: ignore[arg-type]
    assert tally.tokens > 0.9 * sum(len(a.token_ids) for output in alone for a in output.outputs), "too many ties"
    figures = f"{tally.tokens} tokens equal, {tally.ties} excused by a tie within {TIE:g}, {preemptions} preemptions, "
    proof.report(f"sampling options, {name}", figures + f"{tally.logprobs} logprobs within {tally.largest:.1e}")


def compare(
    where: str,
    llm: LLM,
    prompt: list[int],
    params: SamplingParams,
    mine: CompletionOutput,
    theirs: CompletionOutput,
    tally: Tally,
) -> None:
    """Equal in everything, unless a greedy choice was between two that tie once the options have been applied, or an
    unfiltered draw fell on the border between the two tokens."""
    same = next(
        (i for i, (a, b) in enumerate(zip(mine.token_ids, theirs.token_ids, strict=False)) if a != b),
        len(mine.token_ids),
    )
    tally.tokens += same
    if mine.logprobs is not None and theirs.logprobs is not None:
        compare_logprobs(where, mine.logprobs[:same], theirs.logprobs[:same], tally)
    if mine.token_ids == theirs.token_ids:
        assert (mine.text, mine.finish_reason) == (theirs.text, theirs.finish_reason), where
        return
    unfiltered = params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0
    assert (params.greedy or unfiltered) and same < min(len(mine.token_ids), len(theirs.token_ids)), (
        f"{where}, answer {mine.index}: {theirs.token_ids} instead of {mine.token_ids}"
    )
    request = Request("x", prompt, params, max_num_tokens=10**6)
    request.token_ids += mine.token_ids[:same]
    scores = adjust(llm.runner.logits(request.token_ids)[-1:], [request])[0]
    one, other = mine.token_ids[same], theirs.token_ids[same]
    if params.greedy:
        gap, most = max(abs(scores[one] - scores[other]).item(), (scores.max() - scores[one]).item()), TIE
    else:
        assert params.seed is not None
        drawn = Drawn(params.temperature, params.seed + mine.index * FORK_SEED_STEP)
        gap, most = from_border(scores.double(), drawn, len(request.token_ids), one, other), DRAW_TIE
    assert gap < most, f"{where}, answer {mine.index}: {other} instead of {one} is no tie, {gap:.3g} apart"
    tally.ties += 1


def compare_logprobs(where: str, mine: list[Logprobs], theirs: list[Logprobs], tally: Tally) -> None:
    """The same token, as many likeliest ones (two that tie may swap), and all log probabilities within TIE."""
    assert len(mine) == len(theirs), f"{where}: {len(theirs)} positions have log probabilities instead of {len(mine)}"
    for a, b in zip(mine, theirs, strict=True):
        assert next(iter(a)) == next(iter(b)) and len(a) == len(b), where
        values = [torch.tensor(sorted(one.logprob for one in found.values())) for found in (a, b)]
        gap = (values[0] - values[1]).abs().max().item()
        assert gap < TIE, f"{where}: log probabilities differ by {gap:.3g}"
        tally.largest = max(tally.largest, gap)
        tally.logprobs += len(a)
