"""``quantization``: what is loaded, what it loses, what is refused, and that it lives with every other option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kernels.cpu import build, native
from kernels.cpu.linear import embedding
from kernels.cpu.panels import Panels, in_panels
from kernels.reference.weights import float_weight, pack, unpack
from tests.model.gguf_files import write_gguf
from tests.model.tiny import make_tiny
from tests.tiny_llm import open_llm
from workbench import LLM, SamplingParams, fast
from workbench.errors import UsageError
from workbench.fast import MOST_LOSS, Tried, choose
from workbench.model.cost import Share
from workbench.model.divergence import kl_divergence
from workbench.model.quantize import FROM_FLOATS, SCHEMES

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
HEAD = list(range(40))
PROMPTS = [[5, 6, 7], [*HEAD, 3, 4], [9], [*HEAD, 8, 1, 2]]
SHAPE = {
    "hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 160, "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files hold weights only."""
    monkeypatch.setattr("workbench.llm._tokenizer", lambda *_: None)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPE)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as floats."""
    path = tmp_path_factory.mktemp("floats")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=["Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "Q5_1"])
def gguf_file(request: pytest.FixtureRequest, model: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp("gguf") / f"tiny.{request.param}.gguf"
    write_gguf(path, model, "llama", request.param)
    return request.param, path


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def logits(llm: LLM) -> torch.Tensor:
    return llm.runner.logits([*HEAD, 8, 1, 2])


def loss(llm: LLM, exact: LLM) -> float:
    return kl_divergence(logits(exact), logits(llm))


def test_a_files_own_blocks_are_what_is_computed_with(gguf_file: tuple[str, Path]) -> None:
    """The same weights, so the loss is that of rounding activations to 16 bits; and the bytes are the file's."""
    kind, path = gguf_file
    packed, exact = (open_llm(path, quantization=name) for name in ("gguf", "none"))
    expected = {"Q8_0": "q8_0", "Q4_0": "q4_0", "Q4_1": "q4_1", "BF16": "bfloat16"}.get(kind, "float16")
    assert set(packed.quantization.formats.values()) == {expected}
    assert loss(packed, exact) < (1e-6 if kind == "Q5_1" else 1e-7)
    assert answers(packed) == answers(exact)
    stored = sum(info.num_bytes for info in gguf_tensors(path))
    if kind != "Q5_1":  # which is kept as float16
        assert sum(packed.runner.decoder.weight_bytes) <= stored
    assert sum(packed.runner.decoder.weight_bytes) < 0.55 * sum(exact.runner.decoder.weight_bytes)


def gguf_tensors(path: Path) -> list[Any]:
    from workbench.gguf_file import GGUFFile

    return list(GGUFFile(path).tensors.values())


def test_a_file_that_mixes_formats(model: Any, tmp_path: Path) -> None:
    """Value rows in another format than query and key rows: three matrices one under the other, one product."""
    path = tmp_path / "mixed.gguf"
    write_gguf(path, model, "llama", lambda name: "Q8_0" if "attn_v" in name or "down" in name else "Q4_1")
    packed, exact = (open_llm(path, quantization=name) for name in ("gguf", "none"))
    assert [part.format for part in packed.runner.decoder.layers[0].attention.qkv.parts] == ["q4_1", "q4_1", "q8_0"]
    assert loss(packed, exact) < 1e-7 and answers(packed) == answers(exact)
    eager = open_llm(path, quantization="gguf", enforce_eager=True)
    assert answers(eager) == answers(packed)


def expanded(matrix: Panels) -> torch.Tensor:
    """The data of float panels that stand for what these do, as the embedding reads them."""
    return in_panels(float_weight(embedding(matrix, torch.arange(matrix.shape[0])))).data


@pytest.mark.parametrize("scheme", FROM_FLOATS)
def test_schemes_from_floats(folder: Path, scheme: str) -> None:
    """Each stores what it says and computes what its stored weights mean; 16-bit activations lose nothing more."""
    llm, exact = open_llm(folder, quantization=scheme), open_llm(folder)
    decoder, chosen = llm.runner.decoder, llm.quantization
    assert chosen.name == scheme and set(chosen.formats.values()) <= {SCHEMES[scheme].body, "q8_0", "int8"}
    assert 0 < loss(llm, exact) < 0.2
    small = 0.2 if chosen.formats["model.layers.0.self_attn.q_proj.weight"] == "int4" else 0.3
    assert (small == 0.2) == (scheme in ("w4a16", "w4a8")), "96 inputs are no whole groups of 64"
    assert sum(decoder.weight_bytes) < small * sum(exact.runner.decoder.weight_bytes)
    # The same weights expanded to floats: what remains is the rounding of activations.
    other = open_llm(folder)
    for layer, packed in zip(other.runner.decoder.layers, decoder.layers, strict=True):
        for part, name in (("attention", "qkv"), ("attention", "o"), ("mlp", "gate_up"), ("mlp", "down")):
            into, taken = (getattr(getattr(one, part), name).parts[0] for one in (layer, packed))
            into.data.copy_(expanded(taken))
    other.runner.decoder.embedding.data.copy_(expanded(decoder.embedding))
    rounding = loss(llm, other)
    assert rounding < 1e-7 if "a16" in scheme else 1e-7 < rounding < 1e-2


@pytest.mark.parametrize("scheme", ["none", *(name for name in FROM_FLOATS if name != "w4a16-g64")])
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 7, "max_num_seqs": 3},
        {"enable_prefix_caching": False},
        {"batching": "static", "num_kv_blocks": 40},
        {"num_kv_blocks": 22, "preemption_mode": "swap"},
        {"kv_cache_dtype": "fp16"},
        {"attention_backend": "sdpa"},
        {"enforce_eager": True},
        {"prefix_index": "hash", "prefix_partial_reuse": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_every_format_lives_with_every_other_option(folder: Path, scheme: str, options: dict[str, Any]) -> None:
    """Batches, chunks and caches change no token: twice the same prompts, once from the prefix cache."""
    kv = {"kv_cache_dtype": options.get("kv_cache_dtype", "auto")}  # 16 bits may turn a near tie of a random model
    expected = answers(open_llm(folder, quantization=scheme, max_num_seqs=1, enable_prefix_caching=False, **kv))
    llm = open_llm(folder, quantization=scheme, **options)
    assert answers(llm) == expected and answers(llm) == expected
    llm.engine.pool.check()


@pytest.mark.parametrize("scheme", ["none", "w8a16", "w4a8"])
def test_threads_and_capture_change_no_token(folder: Path, scheme: str) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            for eager in (False, True):
                llm = open_llm(folder, quantization=scheme, num_threads=threads, enforce_eager=eager)
                found.append((answers(llm), logits(llm)))
    finally:
        torch.set_num_threads(before)
    assert all(a == found[0][0] and torch.equal(b, found[0][1]) for a, b in found)


def test_a_step_counts_the_bytes_that_it_reads(folder: Path) -> None:
    llm = open_llm(folder, quantization="w8a16")
    traces: list[Any] = []
    llm.engine.listeners.append(traces.append)
    llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), use_tqdm=False)
    body, head = llm.runner.decoder.weight_bytes
    assert traces[-1].bytes == body + head + llm.runner.cost.kv_bytes([Share(3, 1)])


def test_rows_that_are_no_whole_groups_become_int8(tmp_path: Path) -> None:
    make_tiny("smollm2", tmp_path, hidden_size=72)
    formats = open_llm(tmp_path, quantization="w4a16").quantization.formats
    assert formats["model.layers.0.self_attn.q_proj.weight"] == "int8"


def test_a_scheme_may_name_its_groups(tmp_path: Path) -> None:
    make_tiny("smollm2", tmp_path, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128)
    exact, wide, narrow = (open_llm(tmp_path, quantization=name) for name in ("none", "w4a16-g64", "w4a16"))
    body = {name: kind for name, kind in wide.quantization.formats.items() if "layers" in name}
    assert set(body.values()) == {"int4"} and wide.quantization.name == "w4a16-g64"
    assert sum(wide.runner.decoder.weight_bytes) < sum(narrow.runner.decoder.weight_bytes)
    assert loss(wide, exact) > loss(narrow, exact) > 0


def test_half_of_the_kv_bytes(folder: Path) -> None:
    half, full = open_llm(folder, kv_cache_dtype="fp16"), open_llm(folder)
    assert half.runner.cache.storage.dtype is torch.float16
    assert 2 * half.runner.cache.block_bytes == full.runner.cache.block_bytes
    assert 2 * half.runner.cost.kv_bytes_per_token == full.runner.cost.kv_bytes_per_token
    assert answers(half) == answers(full)


# -- refused --


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"quantization": "gguf"}, "the model's weights are floats: use 'auto', 'w8a16' or 'w4a16'"),
        ({"quantization": "w8a16", "dtype": "bfloat16"}, "both say how weights are kept"),
        ({"quantization": "fast", "dtype": "float16"}, "both say how weights are kept"),
        ({"quantization": "fp8"}, "quantization='fp8' is not supported yet"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype='int8' is not supported yet"),
    ],
)
def test_what_is_refused(folder: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        open_llm(folder, **options)


def test_without_a_compiler_only_floats(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers(open_llm(folder))
    monkeypatch.setenv("WORKBENCH_CPU_KERNELS", "none")
    for cached in (build._library, native.function):
        cached.cache_clear()
    try:
        assert answers(open_llm(folder)) == expected
        for scheme in ("w8a16", "fast"):
            with pytest.raises(UsageError, match="needs the C\\+\\+ kernels, and they cannot be built: WORKBENCH_CPU"):
                open_llm(folder, quantization=scheme)
    finally:
        for cached in (build._library, native.function):
            cached.cache_clear()


# -- fast --


def test_the_fastest_that_loses_little_is_chosen() -> None:
    none, exact, lossy = Tried("none", 0.0, 9.0), Tried("gguf", 1e-6, 3.0), Tried("w4a8", 2 * MOST_LOSS, 1.0)
    assert choose([none, exact, lossy]) is exact
    assert choose([none, lossy]) is none
    assert choose([none, Tried("w8a16", MOST_LOSS, 10.0)]) is none, "slower than floats is no gain"


def test_fast_measures_once_and_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    llm = open_llm(folder, quantization="fast")
    assert llm.quantization.name in ("none", *FROM_FLOATS)
    for scheme in ("none", *FROM_FLOATS):
        assert f"{scheme} " in llm.quantization.why
    monkeypatch.setattr(fast, "_try_all", lambda *_: pytest.fail("measured again"))
    again = open_llm(folder, quantization="fast")
    assert again.quantization.why == llm.quantization.why and answers(again) == answers(llm)
    (tmp_path / "fast.json").write_text("{damaged")
    with pytest.raises(BaseException, match="measured again"):
        open_llm(folder, quantization="fast")


def test_a_lossless_file_is_lossless(
    gguf_file: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    kind, path = gguf_file
    llm = open_llm(path, quantization="fast")
    if kind.startswith("Q4"):
        assert "gguf" in llm.quantization.why


def test_gguf_library_agrees_on_our_q8() -> None:
    """``w8a16`` packs into GGUF's Q8_0: the public library reads it back to the same numbers."""
    weight = pack(torch.randn(40, 96, generator=torch.Generator().manual_seed(0)), "q8_0")
    theirs = gguf.dequantize(weight.data.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert torch.equal(torch.from_numpy(theirs), unpack(weight))
