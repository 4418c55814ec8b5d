"""Checkpoints of models with latent attention or experts: what is skipped, kept, packed, made up and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import kernels
from kernels.reference.weights import Weight, unpack
from tests.model.tiny import make_tiny
from tests.tiny_llm import GREEDY, open_llm, tokens
from workbench.errors import UsageError, WorkbenchError
from workbench.model import store
from workbench.model.config import ModelConfig
from workbench.model.decoder import Decoder
from workbench.model.quantize import FROM_FLOATS, quantize
from workbench.model.runner import ModelRunner
from workbench.model.weights import dummy_weights, load_weights

PROMPT = list(range(30, 60))


@pytest.fixture(scope="module")
def v3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Its rows are whole groups of 32, so that every scheme packs as it would a real one."""
    path = tmp_path_factory.mktemp("v3")
    return path, make_tiny("deepseek-v3", path, q_lora_rank=32, moe_intermediate_size=32)


def changed(source: Path, target: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor | None]) -> Path:
    """A copy of a checkpoint with other keys and tensors (None: without it)."""
    hf = json.loads((source / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps(hf))
    stored = load_file(source / "model.safetensors") | tensors
    save_file({name: tensor for name, tensor in stored.items() if tensor is not None}, target / "model.safetensors")
    return target


def test_layers_that_predict_further_tokens_are_passed_over(v3: tuple[Path, Any], tmp_path: Path) -> None:
    """DeepSeek-V3's files hold such a layer behind the last; a layer behind those is still a mistake."""
    names = ("model.layers.3.eh_proj.weight", "model.layers.3.mlp.experts.0.up_proj.weight")
    extra: dict[str, torch.Tensor | None] = {name: torch.ones(2, 2) for name in names}
    path = changed(v3[0], tmp_path, {"num_nextn_predict_layers": 1}, extra)
    assert tokens(open_llm(path)) == tokens(open_llm(v3[0]))
    assert ModelConfig.from_path(path).num_parameters == ModelConfig.from_path(v3[0]).num_parameters
    path = changed(v3[0], tmp_path, {"num_nextn_predict_layers": 0}, extra)
    with pytest.raises(WorkbenchError, match=r"2 unexpected: model\.layers\.3\.eh_proj\.weight"):
        open_llm(path)


def test_what_is_missing_or_of_another_shape_is_named(v3: tuple[Path, Any], tmp_path: Path) -> None:
    spoiled = {
        "model.layers.1.mlp.gate.e_score_correction_bias": None,
        "model.layers.2.mlp.experts.5.down_proj.weight": None,
        "model.layers.0.self_attn.kv_b_proj.weight": torch.ones(88, 31),
    }
    path = changed(v3[0], tmp_path, {}, spoiled)
    with pytest.raises(WorkbenchError, match=r"2 missing: .*correction_bias, .*5\.down_p.*1 of another shape: .*kv_b"):
        open_llm(path)


def test_stacked_experts_of_another_number_or_width_are_named(tmp_path: Path) -> None:
    make_tiny("qwen3-moe", tmp_path, stacked=True)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    stored = load_file(tmp_path / "model.safetensors")
    for spoiled, words in ((stored[name][:7], "missing: .*experts.7.gate_proj"), (stored[name][:, :47], "of another")):
        save_file({**stored, name: spoiled.contiguous()}, tmp_path / "model.safetensors")
        with pytest.raises(WorkbenchError, match=words):
            open_llm(tmp_path)


def test_routers_keep_their_precision(v3: tuple[Path, Any]) -> None:
    """In 16 bits two close experts would be the same."""
    config = ModelConfig.from_path(v3[0])
    for weights in (
        load_weights(config, v3[0], "auto", torch.bfloat16),
        dict(dummy_weights(config, 0, torch.bfloat16)),
    ):
        kept = [name for name, tensor in weights.items() if tensor.dtype == torch.float32]  # type: ignore[union-attr]
        assert len(kept) == 4 and all(".mlp.gate." in name for name in kept)


def test_dummy_weights_run(v3: tuple[Path, Any]) -> None:
    llm = open_llm(v3[0], load_format="dummy")
    assert all(len(answer) == GREEDY.max_tokens for answer in tokens(llm))
    assert llm.runner.logits(PROMPT).std() > 0.1


def routed(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of the prompt, what routers said ``[layers, tokens, experts]`` and which experts they took."""
    route, seen = kernels.route, []

    def watching(scores: torch.Tensor, *args: Any, **options: Any) -> Any:
        made = route(scores, *args, **options)
        seen.append((scores.clone(), made[0].sort(-1).values))
        return made

    with monkeypatch.context() as patched:
        patched.setattr(kernels, "route", watching)
        logits = runner.logits(PROMPT)
    scores, chosen = zip(*seen, strict=True)
    return logits, torch.stack(scores), torch.stack(chosen)


@pytest.mark.parametrize("scheme", FROM_FLOATS)
def test_packed_weights_run_and_stay_near(v3: tuple[Path, Any], scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix is packed but routers and what latents are multiplied out with; computing with what was packed is
    computing with what it stands for, up to rounding of activations.

    Where two experts are as good as equal to the last router, that rounding may take the other one, and that token's
    logits are another's: with ``w4a16-g64`` one of thirty does here. So such tokens are counted, and not compared.
    """
    path = v3[0]
    llm = open_llm(path, quantization=scheme)
    weights: Any = load_weights(llm.model_config, path, "auto", torch.float32)
    quantize(weights, scheme)
    weights = {name: unpack(one) if isinstance(one, Weight) else one for name, one in weights.items()}
    same = open_llm(path)
    same.runner.decoder = Decoder(llm.model_config, weights, same.runner.decoder.attention, 256)
    formats = llm.quantization.formats
    floats = {name for name, format in formats.items() if format == "float32"}
    assert floats == {name for name in formats if name.endswith(("kv_b_proj.weight", "mlp.gate.weight"))} and floats
    logits, scores, chosen = routed(llm.runner, monkeypatch)
    exact, exact_scores, exact_chosen = routed(same.runner, monkeypatch)
    if "a16" in scheme:
        off = (chosen != exact_chosen).any(-1)
        assert not off[:-1].any() and off.sum() <= 1
        assert ((scores - exact_scores).norm() / exact_scores.norm()).item() < 0.002
        logits, exact = logits[~off[-1]], exact[~off[-1]]
    loss = ((logits - exact).norm() / exact.norm()).item()
    assert 0 < loss < (0.001 if "a16" in scheme else 0.4)
    assert sum(llm.runner.decoder.weight_bytes) < 0.6 * sum(open_llm(path).runner.decoder.weight_bytes)
    assert all(len(answer) == GREEDY.max_tokens for answer in tokens(llm))


def test_packing_leaves_alone_what_it_must(v3: tuple[Path, Any]) -> None:
    weights: Any = load_weights(ModelConfig.from_path(v3[0]), v3[0], "auto", torch.float32)
    before = {name: tensor.clone() for name, tensor in weights.items() if "kv_b_proj" in name or ".mlp.gate." in name}
    quantize(weights, "w4a16")
    assert all(torch.equal(weights[name], tensor) for name, tensor in before.items())


def test_a_number_of_experts_is_not_guessed(v3: tuple[Path, Any], tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match="has no 'num_experts_per_tok'"):
        open_llm(changed(v3[0], tmp_path, {"num_experts_per_tok": None}, {}))


def test_published_quantized_weights_are_refused_by_name(v3: tuple[Path, Any], tmp_path: Path) -> None:
    path = changed(v3[0], tmp_path, {"quantization_config": {"quant_method": "fp8"}}, {})
    with pytest.raises(UsageError, match="weights quantized with 'fp8'"):
        open_llm(path)


def test_info_tells_latents_experts_and_sizes(v3: tuple[Path, Any]) -> None:
    path, theirs = v3
    facts = store.info(str(path))
    assert facts["attention"] == "MLA" and facts["unsupported"] == [] and json.dumps(facts)
    assert facts["latent"]["kv_lora_rank"] == 32 and facts["latent"]["q_lora_rank"] == 32
    assert facts["experts"] == {
        "num_experts": 8, "experts_per_token": 3, "intermediate_size": 32, "shared_intermediate_size": 32, "layers": 2,
    }  # fmt: skip
    assert facts["num_parameters"] == sum(p.numel() for p in theirs.parameters())
    routed = sum(p.numel() for name, p in theirs.named_parameters() if ".experts." in name)
    assert facts["active_parameters"] == facts["num_parameters"] - routed * 5 // 8
    assert facts["kv_bytes_per_token"]["bfloat16"] == 3 * (32 + 8) * 2
    assert facts["kv_blocks_per_gib"]["bfloat16"] == 2**30 // (16 * 3 * (32 + 8) * 2)
    assert {"latent", "experts"}.isdisjoint(store.info("qwen3-8b"))


def test_what_a_step_reads_is_the_weights_there_are(v3: tuple[Path, Any]) -> None:
    llm = open_llm(v3[0])
    body, head = llm.runner.decoder.weight_bytes
    embedding = llm.model_config.vocab_size * llm.model_config.hidden_size
    corrections = 2 * 8  # buffers there, so no parameters
    assert body + head == 4 * (llm.model_config.num_parameters - embedding + corrections)
    assert llm.runner.decoder.expert_bytes == 4 * 2 * 8 * 3 * 64 * 32
    assert not replace(llm.model_config, experts=None).unsupported()
