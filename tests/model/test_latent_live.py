"""Latent attention and experts in the engine: whatever it does, the tokens are those transformers generates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.tiny import make_tiny
from tests.tiny_llm import assert_empty, open_llm
from workbench import LLM, SamplingParams
from workbench.attention import latent_requests, torch_native
from workbench.attention.latent_shape import LatentAttention
from workbench.attention.registry import BACKENDS
from workbench.attention.table import CANDIDATES
from workbench.errors import UsageError
from workbench.model import latent_attention, mlp
from workbench.model.kv_cache import KVCache

ANSWER = 20
GREEDY = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
HEAD = [7 * i % 200 + 5 for i in range(36)]
PROMPTS = [[5, 6, 7], [*HEAD, 9, 8, 7], HEAD[:17], [*[11] * 12, 4, 3], HEAD + [44] * 5, [9]]
FEW = replace(GREEDY, max_tokens=3)
LATENT = ("deepseek-v2-lite", "deepseek-v3")
NAMES = (*LATENT, "qwen3-moe")
MANY: dict[str, Any] = {"block_size": 16, "max_num_batched_tokens": 19}
SHORT: dict[str, Any] = {"block_size": 16, "num_kv_blocks": 5, "preemption_mode": "swap"}


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    theirs = make_tiny(request.param, path, seed=1)
    answers = []
    for prompt in PROMPTS:
        generated = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=ANSWER, min_new_tokens=ANSWER, do_sample=False, eos_token_id=-1
        )
        answers.append(generated[0, len(prompt) :].tolist())
    torch.save(answers, path / "answers.pt")
    return path


def served(llm: LLM, params: SamplingParams = GREEDY) -> tuple[list[list[int]], int]:
    """The answers, and how often a request was preempted. The pool is checked after every step."""
    engine = llm.engine
    requests = [engine.requests[engine.add_request(prompt, params)] for prompt in PROMPTS]
    while engine.has_unfinished():
        engine.step()
        engine.pool.check()
    return [request.output_token_ids for request in requests], sum(request.num_preemptions for request in requests)


def poison_unused(llm: LLM) -> None:
    """Rows of the cache that nothing was ever written to hold NaN."""
    llm.runner.cache.storage.fill_(float("nan"))


def check(folder: Path, params: SamplingParams = GREEDY, **options: Any) -> int:
    llm = open_llm(folder, **{"num_kv_blocks": 400, "enable_prefix_caching": False, **options})
    poison_unused(llm)
    outputs, preemptions = served(llm, params)
    assert outputs == [answer[: params.max_tokens] for answer in torch.load(folder / "answers.pt")]
    assert_empty(llm)
    return preemptions


@pytest.mark.parametrize("block_size", [1, 16, 17])
def test_chunks_and_blocks_change_no_token(folder: Path, block_size: int) -> None:
    for budget in (7, 64):
        check(folder, block_size=block_size, max_num_batched_tokens=budget)


def test_torch_operations_give_the_same_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    norm = latent_attention.kernels.rms_norm
    monkeypatch.setattr(
        latent_attention.kernels, "rms_norm", lambda *args, maker: made.append(maker) or norm(*args, maker=maker)
    )
    check(folder, enable_kernel_fusion=False)
    assert set(made) == {"reference"}


@pytest.mark.parametrize("folder", LATENT, indirect=True)
def test_triton_gives_the_same_tokens(folder: Path) -> None:
    """Interpreted where there is no GPU, so only the first tokens: prompts in chunks beside requests that decode."""
    check(folder, FEW, attention_backend="triton", **MANY)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("block_size", [1, 16, 17])
def test_preemption_changes_no_token(folder: Path, block_size: int, mode: str) -> None:
    longest = max(map(len, PROMPTS)) + ANSWER
    blocks = -(-longest // block_size) + (1 if block_size > 1 else 9)
    assert check(folder, block_size=block_size, num_kv_blocks=blocks, preemption_mode=mode) > 0


@pytest.mark.parametrize(
    ("block_size", "options"),
    [
        (1, {"prefix_index": "radix"}),
        (16, {"prefix_index": "hash"}),
        (17, {"prefix_index": "radix", "prefix_partial_reuse": True}),
    ],
)
def test_cached_latents_change_no_token(folder: Path, block_size: int, options: dict[str, Any]) -> None:
    llm = open_llm(folder, num_kv_blocks=400, block_size=block_size, enable_prefix_caching=True, **options)
    poison_unused(llm)
    expected = torch.load(folder / "answers.pt")
    for _ in range(2):
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert [output.token_ids for output in outputs] == expected
        cached = [output.num_cached_tokens for output in outputs]
    assert cached[1] >= len(PROMPTS[1]) - block_size > 0
    assert_empty(llm)


def test_a_half_precision_cache_holds_latents_too(folder: Path) -> None:
    llm = open_llm(folder, kv_cache_dtype="fp16")
    whole = open_llm(folder).runner.logits(PROMPTS[1])
    assert llm.runner.cache.block_bytes * 2 == open_llm(folder).runner.cache.block_bytes
    assert 0 < (llm.runner.logits(PROMPTS[1]) - whole).abs().max() < 0.5


def test_weights_are_shared_and_steps_run_one_by_one(folder: Path) -> None:
    """No step of these is recorded: a mixture looks at how many tokens an expert has."""
    llm = open_llm(folder)
    assert llm.runner.captured is None and llm.runner.recorder is None
    other = LLM(weights_of=llm, num_kv_blocks=64, block_size=16)
    assert other.runner.decoder.layers is llm.runner.decoder.layers
    assert served(other)[0] == served(llm)[0] == torch.load(folder / "answers.pt")


# What is refused, and what the pool comes to.


@pytest.mark.parametrize("folder", ["deepseek-v3"], indirect=True)
@pytest.mark.parametrize("backend", [name for name in BACKENDS if not CANDIDATES[name].latent_too])
def test_other_backends_refuse_latent_attention_by_name(folder: Path, backend: str) -> None:
    with pytest.raises(UsageError, match=f"attention_backend='{backend}' .*latent attention .*use 'torch_native'"):
        open_llm(folder, attention_backend=backend)
    for name in ("auto", "torch_native"):
        assert open_llm(folder, attention_backend=name).runner.decoder.attention.name == "torch_native"


@pytest.mark.parametrize("folder", ["qwen3-moe"], indirect=True)
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "triton"])  # interpreted it takes minutes
def test_experts_go_with_every_backend(folder: Path, backend: str) -> None:
    check(folder, attention_backend=backend)


@pytest.mark.parametrize("folder", ["deepseek-v3"], indirect=True)
def test_the_pool_is_sized_by_what_it_stores(folder: Path) -> None:
    token = 3 * (32 + 8) * 4  # layers · (latent and rotated key) · float32
    llm = open_llm(folder, block_size=16, num_kv_blocks=None, kv_cache_memory_bytes=100_000)
    blocks = 100_000 // (16 * token)
    assert llm.model_config.kv_bytes_per_token("float32") == token
    assert llm.config.num_kv_blocks == llm.runner.cache.num_blocks == llm.engine.pool.num_blocks == blocks
    assert llm.runner.cache.storage.nbytes == blocks * 16 * token == blocks * llm.runner.cache.block_bytes
    assert llm.runner.cost.kv_bytes_per_token == token and llm.runner.cache.token_bytes * 3 == token


# Faults in what the engine hands to latent attention; every one must change a token or trip a check.


def table_of_a_neighbour(patch: pytest.MonkeyPatch) -> None:
    """A request's block table is that of the request before it."""
    made = latent_requests.requests
    patch.setattr(
        latent_requests,
        "requests",
        lambda *args: (found := made(*args)) and found._replace(block_tables=found.block_tables.roll(1, 0)),
    )


def one_token_short(patch: pytest.MonkeyPatch) -> None:
    """A decoding request does not see its own latent."""
    made = torch_native.kernels.paged_latent_attention

    def short(q: Any, cache: Any, tables: Any, start: Any, lengths: list[int], **options: Any) -> torch.Tensor:
        return made(q, cache, tables, start, [max(1, length - 1) for length in lengths], **options)

    patch.setattr(torch_native.kernels, "paged_latent_attention", short)


def rows_of_neighbours(patch: pytest.MonkeyPatch) -> None:
    made = latent_requests.requests
    patch.setattr(
        latent_requests, "requests", lambda *args: (found := made(*args)) and found._replace(rows=found.rows.flip(0))
    )


def key_not_rotated(patch: pytest.MonkeyPatch) -> None:
    turn = latent_attention.kernels.rotary_embedding
    patch.setattr(
        latent_attention.kernels,
        "rotary_embedding",
        lambda x, *args, **options: None if x.shape[1] == 1 else turn(x, *args, **options),
    )


def latent_not_normalized(patch: pytest.MonkeyPatch) -> None:
    norm = latent_attention.kernels.rms_norm
    patch.setattr(
        latent_attention.kernels,
        "rms_norm",
        lambda x, *args, **options: x.clone() if x.shape[-1] == 32 else norm(x, *args, **options),
    )


def slots_one_on(patch: pytest.MonkeyPatch) -> None:
    write = latent_attention.kernels.write_kv
    patch.setattr(
        latent_attention.kernels,
        "write_kv",
        lambda kv, cache, slots, **options: write(kv, cache, slots.roll(1), **options),
    )


def moved_without_the_rotated_key(patch: pytest.MonkeyPatch) -> None:
    init = KVCache.__init__

    def narrow(self: KVCache, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if self.storage.dim() == 4:
            self.storage = self.storage[..., :32]

    patch.setattr(KVCache, "__init__", narrow)


def experts_of_a_neighbour(patch: pytest.MonkeyPatch) -> None:
    route = mlp.kernels.route

    def rolled(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        chosen, weights = route(*args, **options)
        return chosen.roll(1, 0), weights

    patch.setattr(mlp.kernels, "route", rolled)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], dict[str, Any]]] = [
    (table_of_a_neighbour, MANY),
    (one_token_short, MANY),
    (rows_of_neighbours, MANY),
    (key_not_rotated, MANY),
    (latent_not_normalized, MANY),
    (slots_one_on, MANY),
    (moved_without_the_rotated_key, SHORT),
    (experts_of_a_neighbour, MANY),
]


@pytest.mark.parametrize("folder", ["deepseek-v3"], indirect=True)
@pytest.mark.parametrize(("fault", "options"), FAULTS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_seeded_fault_is_caught(
    folder: Path, fault: Callable[[pytest.MonkeyPatch], None], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises(AssertionError):
            check(folder, **options)
    check(folder, **options)


def test_short_and_long_chunks_go_both_ways() -> None:
    """The rule that picks one: the fewer FLOPs. DeepSeek-V2's widths."""
    wide = LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)
    assert (wide.cached_width, wide.query_dim) == (576, 192)
    assert not wide.expands(4096, 1) and not wide.expands(10**6, 170) and wide.expands(10**6, 171)
    assert wide.expands(0, 1) and wide.expands(100, 128)
