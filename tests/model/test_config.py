"""ModelConfig against transformers: the same models, built there on the meta device (shapes without storage)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from tests.model.tiny import FAMILIES as TINY
from tests.model.tiny import make_tiny
from tests.model.tiny_latent import MIXED
from workbench.errors import UsageError, WorkbenchError
from workbench.model.architecture import FAMILIES
from workbench.model.bits import BITS, bits_of
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config, shipped_names

SMALL: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# Latent attention has no KV heads of its own; without experts every token takes the same way.
LATENT: dict[str, Any] = {"num_key_value_heads": 4, "first_k_dense_replace": 99}


MLA: dict[str, Any] = {
    "model_type": "deepseek_v2", "kv_lora_rank": 64, "qk_rope_head_dim": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "topk_method": "softmax_first",
}  # fmt: skip


def on_meta(model_type: str, device: str = "meta", **changes: Any) -> PreTrainedModel:
    config = AutoConfig.for_model(model_type, **changes)
    config._attn_implementation = "eager"
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config)


def config_of(model: PreTrainedModel) -> ModelConfig:
    return ModelConfig.from_dict(json.loads(model.config.to_json_string(use_diff=False)))


def parts_of(model: PreTrainedModel) -> dict[str, int]:
    """transformers' parameters sorted into the same parts, by name."""
    parts = dict.fromkeys(("embedding", "attention", "mlp", "norm", "lm_head"), 0)
    for name, parameter in model.named_parameters():
        if "norm" in name or ".ln_" in name:
            part = "norm"
        elif "attn" in name or ".attention." in name:
            part = "attention"
        elif "lm_head" in name or "embed_out" in name:
            part = "lm_head"
        elif "embed" in name or "wte" in name or "wpe" in name:
            part = "embedding"
        else:
            assert "mlp" in name or "block_sparse_moe" in name, name
            part = "mlp"
        parts[part] += parameter.numel()
    return parts


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_part_is_counted_as_transformers_builds_it(model_type: str) -> None:
    # GPT-2 and NeoX know no KV heads, GPT-2 names its inner width otherwise: transformers would keep the keys unused.
    unused = {"gpt2": ("num_key_value_heads", "intermediate_size"), "gpt_neox": ("num_key_value_heads",)}
    unused_here = unused.get(model_type, ())
    model = on_meta(model_type, **{key: value for key, value in SMALL.items() if key not in unused_here})
    count = config_of(model).parameters()
    assert {name: getattr(count, name) for name in parts_of(model)} == parts_of(model)
    assert count.total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": True, "head_dim": 20}),
        ("qwen3", {"attention_bias": True, "head_dim": 20}),
        ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1], "qkv_bias": False}),
        ("qwen3_moe", {"decoder_sparse_step": 2, "num_hidden_layers": 5, "mlp_only_layers": [3]}),
        ("deepseek_v2", {"q_lora_rank": None, "first_k_dense_replace": 1, "attention_bias": True}),
        ("deepseek_v2", {"mlp_bias": True, "n_shared_experts": 1, "first_k_dense_replace": 1}),
        ("deepseek_v3", {"q_lora_rank": 32, "first_k_dense_replace": 2, "n_shared_experts": 3}),
        ("starcoder2", {"use_bias": False}),
    ],
)
def test_switches_of_the_config_change_the_count_alike(model_type: str, changes: dict[str, Any]) -> None:
    model = on_meta(model_type, **{**SMALL, **changes})
    assert config_of(model).num_parameters == sum(p.numel() for p in model.parameters())


KNOWN = {
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "llama-3.1-8b": 8_030_261_248,
    "llama-2-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
}


@pytest.mark.parametrize("model_type", ["gpt_oss", "glm4", "phi", "falcon", "cohere2", "olmo3", "stablelm", "opt"])
def test_families_not_known_are_estimated_and_say_so(model_type: str) -> None:
    model = on_meta(model_type)
    config = config_of(model)
    assert not config.counted_exactly and config_of(on_meta("llama", **SMALL)).counted_exactly
    assert config.num_parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.02)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_configurations_have_the_published_size_and_run(name: str) -> None:
    config = ModelConfig.from_dict(shipped_config(name))
    assert config.num_parameters == KNOWN[name]
    assert config.unsupported() == []
    model = on_meta(**shipped_config(name))
    assert sum(p.numel() for p in model.parameters()) == KNOWN[name]


def test_every_promised_configuration_is_shipped() -> None:
    assert shipped_names() == sorted(KNOWN)
    with pytest.raises(UsageError, match=r"'gpt-5'.*qwen3-8b"):
        shipped_config("gpt-5")


@pytest.mark.parametrize(
    ("model_type", "published"),
    # Billions in all and for one token, as their makers round them.
    [("mixtral", (46.7, 12.9)), ("deepseek_v3", (671.0, 37.6)), ("qwen3_moe", None), ("deepseek_v2", None)],
)
def test_active_parameters_of_mixtures(model_type: str, published: tuple[float, float] | None) -> None:
    model = on_meta(model_type, **{} if published else SMALL)
    count = config_of(model).parameters()
    share = 1 - model.config.num_experts_per_tok / count_experts(model)
    routed = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    assert count.active == count.total - share * routed
    if published is not None:
        assert (round(count.total / 1e9, 1), round(count.active / 1e9, 1)) == published


def count_experts(model: PreTrainedModel) -> int:
    """The first dimension of the stacked expert weights."""
    return next(p.shape[0] for name, p in model.named_parameters() if ".experts." in name)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "olmo2", "phi3", "deepseek_v3"])
def test_flops_equal_those_counted_in_a_forward_pass(model_type: str) -> None:
    # With full (not causal) scores a prompt of n tokens costs n times one token that sees n.
    model, tokens = on_meta(model_type, "cpu", **{**SMALL, **(LATENT if model_type.startswith("deepseek") else {})}), 37
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    assert counter.get_total_flops() == tokens * config_of(model).flops_per_token(tokens)


def test_flops_of_windows_and_experts() -> None:
    window = ModelConfig.from_dict(shipped_config("mistral-7b"))
    assert window.flops_per_token(9000) == window.flops_per_token(4096) > window.flops_per_token(4095)
    mixture = ModelConfig.from_dict(AutoConfig.for_model("mixtral").to_dict())
    count = mixture.parameters()
    norms_and_lookup = count.norm + count.embedding
    assert mixture.flops_per_token(0) == 2 * (count.active - norms_and_lookup)


def cached_bytes_per_token(model: PreTrainedModel, tokens: int) -> float:
    with torch.no_grad():
        output = model(torch.zeros(1, tokens, dtype=torch.long), use_cache=True)
    # Position 1 of the output is the cache; its name differs between versions.
    cache = output.to_tuple()[1]
    assert isinstance(cache, DynamicCache)
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values)) / tokens


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "deepseek_v2", "deepseek_v3"])
def test_kv_bytes_equal_what_the_cache_of_transformers_holds(model_type: str) -> None:
    model = on_meta(model_type, "cpu", **{**SMALL, **(LATENT if model_type.startswith("deepseek") else {})})
    assert cached_bytes_per_token(model, 11) == config_of(model).kv_bytes_per_token("float32")


def test_kv_bytes_of_public_models() -> None:
    bytes_of = {name: ModelConfig.from_dict(shipped_config(name)).kv_bytes_per_token("float16") for name in KNOWN}
    assert bytes_of["llama-2-7b"] == 524_288
    assert bytes_of["llama-3.1-8b"] == 131_072
    assert bytes_of["smollm2-135m"] == 23_040
    config = ModelConfig.from_dict(shipped_config("llama-3.1-8b"))
    assert config.kv_bytes_per_token() == 131_072
    assert config.kv_bytes_per_token("int8") == 65_536
    assert config.kv_bytes_per_token(4.5) == 36_864


def test_attention_kinds() -> None:
    def kind(name: str) -> str:
        return ModelConfig.from_dict(shipped_config(name)).attention_kind

    assert [kind("llama-2-7b"), kind("llama-3.1-8b")] == ["MHA", "GQA"]
    assert ModelConfig.from_dict({**shipped_config("llama-2-7b"), "num_key_value_heads": 1}).attention_kind == "MQA"
    latent = AutoConfig.for_model("deepseek_v2", num_experts_per_tok=6).to_dict()
    assert ModelConfig.from_dict(latent).attention_kind == "MLA"


def test_weight_bytes_and_bits() -> None:
    import gguf

    config = ModelConfig.from_dict(shipped_config("smollm2-135m"))
    assert config.weight_bytes() == config.weight_bytes("torch.bfloat16") == 2 * 134_515_008
    assert config.weight_bytes("q8_0") == 134_515_008 * 34 // 32
    assert config.weight_bytes(4.25) == 71_461_098
    for name, bits in BITS.items():
        kind = gguf.GGMLQuantizationType.__members__.get(name.upper())
        if kind is not None and name.startswith("q"):
            numbers, size = gguf.GGML_QUANT_SIZES[kind]
            assert bits == size * 8 / numbers, name
    with pytest.raises(UsageError, match=r"'fp5'.*bfloat16"):
        bits_of("fp5")
    with pytest.raises(UsageError, match="0 bits"):
        config.weight_bytes(0)


@pytest.mark.parametrize("family", [*TINY, *MIXED])
def test_keys_of_both_transformers_generations_read_alike(family: str, tmp_path: Path) -> None:
    make_tiny(family, tmp_path)
    new = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in new and "dtype" in new
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "dtype", "layer_types")}
    rope = dict(new["rope_parameters"])
    old["rope_theta"], old["torch_dtype"] = rope.pop("rope_theta"), new["dtype"]
    old["rope_scaling"] = None if rope["rope_type"] == "default" else {"type": rope.pop("rope_type"), **rope}
    assert ModelConfig.from_dict(old) == ModelConfig.from_dict(new) == ModelConfig.from_path(tmp_path)


def test_absent_keys_and_lists() -> None:
    old = shipped_config("llama-2-7b")
    del old["num_key_value_heads"], old["attention_bias"]
    assert ModelConfig.from_dict(old) == ModelConfig.from_dict(shipped_config("llama-2-7b"))
    config = ModelConfig.from_dict({**old, "eos_token_id": [2, 7], "head_dim": None})
    assert (config.head_dim, config.eos_token_ids, config.bos_token_id) == (128, (2, 7), 1)
    assert ModelConfig.from_dict({"model_type": "unheard_of", "text_config": old}).num_parameters == KNOWN["llama-2-7b"]


def test_windows_by_layer() -> None:
    base = {**shipped_config("qwen2.5-0.5b"), "sliding_window": 64, "max_window_layers": 20}
    assert ModelConfig.from_dict(base).sliding_window is None
    config = ModelConfig.from_dict({**base, "use_sliding_window": True})
    assert [config.window(layer) for layer in (0, 19, 20, 23)] == [None, None, 64, 64]
    kinds = ["sliding_attention"] + ["full_attention"] * 23
    config = ModelConfig.from_dict({**base, "use_sliding_window": True, "layer_types": kinds})
    assert [config.window(layer) for layer in (0, 1, 23)] == [64, None, None]
    with pytest.raises(WorkbenchError, match=r"layer_types=.* a list of 24 entries, one a layer; it has 1"):
        ModelConfig.from_dict({**base, "use_sliding_window": True, "layer_types": kinds[:1]})
    mistral = ModelConfig.from_dict(shipped_config("mistral-7b"))
    assert {mistral.window(layer) for layer in range(32)} == {4096}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}},
            r"'longrope' \(supported: default, linear, llama3, yarn\)",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
        ({"model_type": "gemma2"}, r"'gemma2' \(supported: llama, mistral, qwen2, qwen3, mixtral, .*deepseek_v3\)"),
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, r"8 experts\) in this family"),
        ({"kv_lora_rank": 512}, "latent attention .* in this family"),
        ({"model_type": "deepseek_v3"}, r"without latent attention \(no kv_lora_rank\)"),
        (MLA, "topk_method 'softmax_first' .*: greedy, group_limited_greedy"),
        ({**MLA, "scoring_func": "sigmoid"}, "scoring_func 'sigmoid' .*: softmax"),
        ({**MLA, "norm_topk_prob": True}, "norm_topk_prob=true in this family, of which implementations disagree"),
        ({**MLA, "qk_rope_head_dim": 33}, "qk_rope_head_dim=33 is odd"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
        ({"quantization_config": {"quant_method": "fp8"}}, "'fp8' .*GGUF, compressed-tensors, gptq, awq"),
        ({"head_dim": 63}, "63 is odd"),
    ],
)
def test_what_cannot_run_is_named_yet_sized(changes: dict[str, Any], named: str) -> None:
    config = ModelConfig.from_dict({**shipped_config("llama-3.1-8b"), **changes})
    assert config.num_parameters > 1e9 and config.kv_bytes_per_token() > 0 and config.flops_per_token(10) > 1e9
    with pytest.raises(UsageError, match=named):
        config.require_supported()


def test_damaged_configs_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(WorkbenchError, match="hidden_size"):
        ModelConfig.from_dict({"model_type": "llama"})
    with pytest.raises(WorkbenchError, match="num_hidden_layers='three'"):
        ModelConfig.from_dict({**shipped_config("llama-2-7b"), "num_hidden_layers": "three"})
    with pytest.raises(WorkbenchError, match=r"config\.json"):
        ModelConfig.from_path(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WorkbenchError, match="JSON"):
        ModelConfig.from_path(tmp_path)


def test_no_torch_is_imported() -> None:
    code = "import sys, workbench.model.config, workbench.model.configs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
