"""Notebook 01's exercises against the engine: the answers are the engine's own, and a function swapped in is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.exercise_made import RUNNING_TOTAL, running_total
from tests.model.tiny import make_tiny
from tests.tiny_llm import GREEDY, open_llm
from workbench import LLM
from workbench.errors import UsageError
from workbench.lab.exercise import Swap
from workbench.lab.exercises import exercise
from workbench.lab.exercises import nb01_cases as cases
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config, shipped_names
from workbench.model.cost import StepCost
from workbench.plan import Scheduled, StepPlan

KV, DECODE = exercise("01", "kv-bytes"), exercise("01", "decode-cost")


@pytest.fixture(autouse=True)
def _ungraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_GRADE", raising=False)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tied")
    make_tiny("smollm2", path, seed=2)
    return path


def stub(*arguments: Any) -> Any: ...


def traced(llm: LLM) -> list[tuple[bool, int, int]]:
    """(is a decode step, FLOPs, bytes) of each step of a run with requests of several lengths."""
    for prompt in ([5, 6, 7], [8] * 20, [9]):
        llm.engine.add_request(prompt, GREEDY)
    steps = []
    while llm.engine.has_unfinished():
        trace = llm.engine.step()
        steps.append((all(item["kind"] == "decode" for item in trace.scheduled), trace.flops, trace.bytes))
    return steps


# The answers are the engine's own.


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("bits", [32, 16, 8, 4])
def test_kv_bytes_of_public_models(name: str, bits: int) -> None:
    hf = shipped_config(name)
    assert cases.counted_kv_bytes(hf, bits / 8) == ModelConfig.from_dict(hf).kv_bytes_per_token(bits)


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("contexts", [[1], [7, 40, 40, 3]])
def test_decode_cost_of_public_models(name: str, contexts: list[int]) -> None:
    config = ModelConfig.from_dict(shipped_config(name))
    table = 0 if config.tie_word_embeddings else 2 * config.vocab_size * config.hidden_size
    cost = StepCost(config, config.weight_bytes("bfloat16") - table, config.kv_bytes_per_token("bfloat16"))
    plan = StepPlan([Scheduled(None, seen - 1, 1, "decode", True) for seen in contexts])  # type: ignore[arg-type]
    assert cases.counted_decode_cost(cases.shape_of(config), contexts, 2, 2) == cost.of(plan)


# In the engine.


def test_the_engine_sizes_its_pool_with_the_readers_count(tied: Path) -> None:
    own = ModelConfig.kv_bytes_per_token
    options = {"num_kv_blocks": None, "kv_cache_memory_bytes": 10**6}
    before = open_llm(tied, **options)
    with KV.use(KV.function) as used:
        during = open_llm(tied, **options)
        assert used.who == "your function" and used.calls > 0
        assert ModelConfig.kv_bytes_per_token is not own
    assert ModelConfig.kv_bytes_per_token is own
    assert during.engine.pool.num_blocks == before.engine.pool.num_blocks
    # That it is this number that counts: twice the bytes, half the blocks.
    with KV._swapped(lambda *arguments: 2 * KV.function(*arguments)):
        assert open_llm(tied, **options).engine.pool.num_blocks == before.engine.pool.num_blocks // 2


def test_an_embedding_table_that_is_not_the_head_counts_as_unread(tmp_path: Path) -> None:
    make_tiny("qwen2", tmp_path)
    llm = open_llm(tmp_path, enable_prefix_caching=False)
    config, before = llm.model_config, traced(llm)
    assert not config.tie_word_embeddings
    table = config.vocab_size * config.hidden_size
    assert llm.runner.cost.weight_bytes == config.weight_bytes("float32") - 4 * table
    with DECODE.use(DECODE.function) as used:
        assert traced(llm) == before and used.calls > 0


def test_decode_steps_report_the_readers_cost(tied: Path) -> None:
    llm = open_llm(tied, enable_prefix_caching=False)
    before = traced(llm)
    with DECODE.use(DECODE.function) as used:
        assert traced(llm) == before
    decodes = sum(decode for decode, *_ in before)
    assert 0 < used.calls == decodes < len(before)
    with DECODE._swapped(lambda *arguments: (1, 2)):
        assert [step[1:] == (1, 2) for step in traced(llm)] == [decode for decode, *_ in before]
    assert traced(llm) == before


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama2"])
def test_families_with_biases_norms_and_untied_heads(family: str, tmp_path: Path) -> None:
    make_tiny(family, tmp_path, seed=1)
    llm = open_llm(tmp_path, enable_prefix_caching=False)
    before = traced(llm)
    with DECODE.use(DECODE.function) as used:
        during = traced(llm)
    config = llm.model_config
    table = 0 if config.tie_word_embeddings else 4 * config.vocab_size * config.hidden_size
    assert used.calls > 0
    for (decode, flops, num_bytes), (_, their_flops, their_bytes) in zip(before, during, strict=True):
        assert their_flops == flops
        # The engine may count an untied embedding table, of which a step reads a few rows.
        assert their_bytes in ((num_bytes, num_bytes - table) if decode else (num_bytes,))


def test_what_the_exercise_leaves_out_stays_with_the_engine(tmp_path: Path) -> None:
    make_tiny("mistral", tmp_path, seed=1)
    llm = open_llm(tmp_path, enable_prefix_caching=False)
    before = traced(llm)
    with DECODE.use(DECODE.function) as used:
        assert traced(llm) == before
    assert used.calls == 0


def test_the_engines_own_comes_back_after_an_error() -> None:
    own = vars(StepCost)["of"]
    with pytest.raises(ZeroDivisionError), DECODE.use(DECODE.function):
        1 / 0  # noqa: B018
    assert vars(StepCost)["of"] is own
    with DECODE.use(DECODE.function):
        pass


def test_one_function_at_a_time() -> None:
    own = vars(StepCost)["of"]
    with KV.use(KV.function):
        with (
            pytest.raises(UsageError, match="kv-bytes is in the engine now: leave its 'with' block before you use dec"),
            DECODE.use(DECODE.function),
        ):
            pass
        assert vars(StepCost)["of"] is own
    with DECODE.use(DECODE.function):
        pass


def test_a_wrong_function_stays_out() -> None:
    own = ModelConfig.kv_bytes_per_token
    with pytest.raises(
        UsageError, match=r"your kv_bytes_per_token fails its check \(by hand: .*check\(kv_bytes_per_tok"
    ):
        KV.use(lambda config, size: 7).__enter__()
    assert ModelConfig.kv_bytes_per_token is own


def test_a_stub_leaves_the_engine_as_it_is_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    own = ModelConfig.kv_bytes_per_token
    with KV.use(stub) as used:
        assert ModelConfig.kv_bytes_per_token is own
    assert used.who == "the engine's own"
    assert (
        "kv-bytes: not attempted, so the engine keeps its own workbench.model.config.ModelConfig.kv_bytes_per_tok"
        in (capsys.readouterr().out)
    )


def test_reference_puts_the_solution_in_for_a_stub(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_GRADE", "reference")
    with KV.use(stub) as used:
        open_llm(tied)
    assert used.who == "the reference solution" and used.calls > 0


def test_no_place_in_the_engine_is_said() -> None:
    with pytest.raises(UsageError, match="ridge has no place in the engine: call your ridge_batch yourself"):
        exercise("01", "ridge").use(stub).__enter__()


def test_a_function_of_a_module_can_be_swapped() -> None:
    def adapt(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda values: [*function(values), original([])]

    place = Swap(__name__, "", "stub", adapt)
    with replace(RUNNING_TOTAL, swap=place).use(running_total) as used:
        assert stub([1, 2]) == [1, 3, None]
    assert used.calls == 1 and stub([1, 2]) is None
