"""A config.json with a wrong value in it: one line that names the file, the key, the value and the limit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.errors import UsageError, WorkbenchError
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FULL: dict[str, Any] = {
    **shipped_config("qwen2.5-0.5b"),
    "head_dim": 64, "use_sliding_window": True, "layer_types": ["full_attention"] * 24, "rope_scaling": LLAMA3,
    "original_max_position_embeddings": 8192, "partial_rotary_factor": 1.0, "attention_bias": True, "qkv_bias": True,
    "mlp_bias": False, "multi_query": False, "quantization_config": {"quant_method": "awq"}, "dtype": "float16",
    "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1,
    "shared_expert_intermediate_size": 32, "first_k_dense_replace": 1, "mlp_only_layers": [1], "moe_layer_freq": 1,
    "decoder_sparse_step": 1, "kv_lora_rank": 32, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "sliding_window_pattern": 2, "rope_interleave": True, "topk_method": "noaux_tc", "n_group": 4,
    "topk_group": 2, "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
"""Every key that is read, in one file that no model has."""
ODD: list[Any] = [None, True, False, 0, -1, 1, 3, 2**31, 10**30, 0.0, -1.0, 1e-300, 1e308, math.nan, math.inf, "",
                  "abc", "64", [], [1], ["x"], {}, {"x": 1}, [[]]]  # fmt: skip
SIMPLE = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4))
VALUES = st.one_of(
    st.sampled_from(ODD),
    SIMPLE,
    st.lists(SIMPLE, max_size=3),
    st.dictionaries(st.text(max_size=3), st.one_of(SIMPLE, st.lists(SIMPLE, max_size=2)), max_size=3),
)


def read(hf: dict[str, Any]) -> str | None:
    """None if it is read, and everything that follows from it can be worked out; else the words of its refusal."""
    try:
        config = ModelConfig.from_dict(hf, "folder/config.json")
    except WorkbenchError as error:
        words = str(error)
        assert words.startswith("folder/config.json") and "\n" not in words and len(words) < 600, words
        return words
    assert config.num_parameters > 0 and config.weight_bytes() > 0 and config.kv_bytes_per_token() > 0
    assert config.flops_per_token(100) > 0 and config.parameters().active <= config.num_parameters
    assert config.head_dim > 0 and config.rms_norm_eps > 0 and math.isfinite(config.rope_theta)
    assert len(config.sliding_layers) == config.num_layers and config.attention_kind
    try:
        config.require_supported()
    except UsageError as error:
        assert "\n" not in str(error)
    return None


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("hidden_size", "abc", "a whole number from 1 to 2147483647"),
        ("hidden_size", -8, "a whole number from 1 to 2147483647"),
        ("hidden_size", 10**30, "a whole number from 1 to 2147483647"),
        ("hidden_size", 64.0, "a whole number from 1"),
        ("hidden_size", True, "a whole number from 1"),
        ("num_attention_heads", 0, "a whole number from 1"),
        ("num_hidden_layers", 10**6, "a whole number from 1 to 10000"),
        ("num_key_value_heads", 0, "a whole number from 1"),
        ("num_key_value_heads", 3, "a divisor of the 14 attention heads"),
        ("num_key_value_heads", [2, 2], "a whole number from 1"),
        ("head_dim", 0, "a whole number from 1"),
        ("vocab_size", {}, "a whole number from 1"),
        ("intermediate_size", [11008, 8192], "a whole number from 1"),
        ("max_position_embeddings", 0, "a whole number from 1"),
        ("rms_norm_eps", None, "a number above 0 and at most 1"),
        ("rms_norm_eps", "1e-5", "a number above 0 and at most 1"),
        ("rms_norm_eps", math.nan, "a number above 0 and at most 1"),
        ("rope_theta", -1, "a number above 0 and at most 1e\\+15"),
        ("rope_theta", 0, "a number above 0"),
        ("rope_theta", math.inf, "a number above 0"),
        ("rope_theta", 10**400, "a number above 0"),
        ("rope_scaling", "linear", "an object"),
        ("rope_scaling.factor", 0, "a number above 0"),
        ("rope_scaling.factor", None, "given for rope scaling 'llama3'"),
        ("rope_scaling.high_freq_factor", 1.0, "above low_freq_factor=1"),
        ("rope_scaling.rope_type", 3, "text"),
        ("partial_rotary_factor", 2, "a number above 0 and at most 1"),
        ("tie_word_embeddings", "false", "true or false"),
        ("use_sliding_window", 1, "true or false"),
        ("sliding_window", "x", "a whole number from 0"),
        ("layer_types", [1], "a list of texts"),
        ("layer_types", ["full_attention"], "a list of 24 entries, one a layer; it has 1"),
        ("eos_token_id", "2", "a token id or a list of token ids"),
        ("eos_token_id", [2, None], "a token id or a list of token ids"),
        ("bos_token_id", 1.5, "a token id or a list of token ids"),
        ("torch_dtype", "float99", "a dtype that is known"),
        ("torch_dtype", 16, "text"),
        ("model_type", ["llama"], "text"),
        ("architectures", "LlamaForCausalLM", "a list of texts"),
        ("hidden_act", {}, "text"),
        ("quantization_config", "awq", "an object"),
        ("num_experts_per_tok", 9, "a whole number from 1 to 8"),
        ("mlp_only_layers", 3, "a list of whole numbers from 0"),
        ("n_group", 3, "a divisor of the 8 experts that leaves 1 or more a group"),
        ("topk_group", 5, "a whole number from 1 to 4"),
        ("num_experts_per_tok", 5, None),
        ("routed_scaling_factor", 0, "a number above 0"),
        ("rope_scaling.mscale", -1, "a number from 0 and at most"),
        ("rope_scaling.truncate", 1, "true or false"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(tmp_path: Path, key: str, value: Any, limit: str | None) -> None:
    hf = json.loads(json.dumps({**FULL, "kv_lora_rank": None, "dtype": None}))
    holder, (*way, last) = hf, key.split(".")
    for name in way:
        holder = holder[name]
    holder[last] = value
    (tmp_path / "config.json").write_text(json.dumps(hf))
    told = "null" if value is None else ""
    if limit is None:  # what is wrong is another key beside it
        key, limit = "topk_group", "enough of the groups of 2 for 5 experts a token"
    with pytest.raises(WorkbenchError, match=rf"config\.json: {key}={told}.* must be {limit}") as caught:
        ModelConfig.from_path(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_the_file_with_every_key_is_read() -> None:
    assert read(FULL) is None
    assert ModelConfig.from_dict({**FULL, "eos_token_id": [2, -1], "bos_token_id": -1}).eos_token_ids == (2,)
    assert ModelConfig.from_dict({**FULL, "rms_norm_eps": None, "layer_norm_eps": 1e-3}).rms_norm_eps == 1e-3


def test_yarn_needs_a_base_that_grows() -> None:
    words = read({**FULL, "rope_theta": 1.0, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}})
    assert words is not None and "rope_theta=1.0 must be above 1 for rope scaling 'yarn'" in words


def test_keys_one_level_down_are_named_with_their_way() -> None:
    words = read({"model_type": "x", "text_config": {**FULL, "hidden_size": -1}})
    assert words is not None and "text_config.hidden_size=-1" in words


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from([*FULL, "text_config", "rope_parameters", "x"]), VALUES, min_size=1, max_size=3))
@example({"hidden_size": 1, "num_attention_heads": 14, "head_dim": None})
@example({"rope_scaling": {"full_attention": {"rope_theta": "x"}, "sliding_attention": None}})
@example({"rope_scaling": {"full_attention": []}})
@example({"text_config": {}})
def test_any_values_are_read_or_refused(changes: dict[str, Any]) -> None:
    read({**FULL, **changes})
    read({**{key: value for key, value in FULL.items() if key not in ("kv_lora_rank", "num_local_experts")}, **changes})


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*LLAMA3, "rope_theta", "beta_fast", "mscale", "attention_factor", "truncate", "x"]), VALUES)
def test_any_values_of_the_rope_are_read_or_refused(key: str, value: Any) -> None:
    read({**FULL, "rope_scaling": {**LLAMA3, key: value}})
    read({**FULL, "rope_scaling": {**LLAMA3, "rope_type": "yarn", key: value}})


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(FULL)))
def test_any_key_may_be_absent_or_is_named(key: str) -> None:
    words = read({name: value for name, value in FULL.items() if name != key})
    assert words is None or f"has no {key!r}" in words


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "3", "null", "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}", "\ufeff{}", "\0"]
)
def test_what_is_no_json_object_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WorkbenchError, match=r"config\.json cannot be read: it is"):
        ModelConfig.from_path(tmp_path)
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(WorkbenchError, match=r"config\.json cannot be read"):
        ModelConfig.from_path(tmp_path)
