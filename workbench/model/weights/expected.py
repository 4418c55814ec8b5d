"""Which tensors a checkpoint must hold: one table, used to make dummy weights and to check real ones. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workbench.errors import WorkbenchError
from workbench.model.config import ModelConfig

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"

_SHOWN = 6


SHARED = {False: "shared_experts", True: "shared_expert"}
"""What the expert is called that every token passes through, by whether a gate of its own scales it."""
ROUTER = ".mlp.gate.weight"
CORRECTION = ".mlp.gate.e_score_correction_bias"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face names and shapes of a supported model's tensors, in the order of the layers.

    Linear weights are ``[out, in]``, experts stand one by one. There is no ``lm_head.weight`` if the head is tied to
    the embedding. Raises UsageError if the decoder cannot run the model.
    """
    config.require_supported()
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        attention = _self_attention(config) if config.latent is None else _latent_attention(config)
        shapes |= {f"{prefix}.self_attn.{name}": shape for name, shape in attention.items()}
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        sparse = config.experts is not None and config.experts.sparse_layers[layer]
        after = _mixture(config) if sparse else _mlp(config, config.intermediate_size, config.mlp_bias)
        shapes |= {f"{prefix}.mlp.{name}": shape for name, shape in after.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


Shapes = dict[str, tuple[int, ...]]


def _linear(name: str, out: int, into: int, bias: bool = False) -> Shapes:
    return {f"{name}.weight": (out, into)} | ({f"{name}.bias": (out,)} if bias else {})


def _self_attention(config: ModelConfig) -> Shapes:
    hidden, head_dim = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_heads * head_dim, config.num_kv_heads * head_dim
    shapes = _linear("q_proj", heads, hidden, config.qkv_bias)
    shapes |= _linear("k_proj", kv_heads, hidden, config.qkv_bias)
    shapes |= _linear("v_proj", kv_heads, hidden, config.qkv_bias)
    if config.qk_norm == "head":
        shapes |= {"q_norm.weight": (head_dim,), "k_norm.weight": (head_dim,)}
    return shapes | _linear("o_proj", hidden, heads, config.o_bias)


def _latent_attention(config: ModelConfig) -> Shapes:
    latent, hidden, heads = config.latent, config.hidden_size, config.num_heads
    assert latent is not None
    if latent.q_lora_rank is None:
        shapes = _linear("q_proj", heads * latent.query_dim, hidden)
    else:
        shapes = _linear("q_a_proj", latent.q_lora_rank, hidden, config.qkv_bias)
        shapes["q_a_layernorm.weight"] = (latent.q_lora_rank,)
        shapes |= _linear("q_b_proj", heads * latent.query_dim, latent.q_lora_rank)
    shapes |= _linear("kv_a_proj_with_mqa", latent.cached_width, hidden, config.qkv_bias)
    shapes["kv_a_layernorm.weight"] = (latent.kv_lora_rank,)
    shapes |= _linear("kv_b_proj", heads * (latent.qk_nope_head_dim + latent.v_head_dim), latent.kv_lora_rank)
    return shapes | _linear("o_proj", hidden, heads * latent.v_head_dim, config.o_bias)


def _mlp(config: ModelConfig, inner: int, bias: bool) -> Shapes:
    shapes = _linear("gate_proj", inner, config.hidden_size, bias)
    shapes |= _linear("up_proj", inner, config.hidden_size, bias)
    return shapes | _linear("down_proj", config.hidden_size, inner, bias)


def _mixture(config: ModelConfig) -> Shapes:
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None
    shapes = _linear("gate", experts.num_experts, hidden)
    if experts.routing.corrected:
        shapes["gate.e_score_correction_bias"] = (experts.num_experts,)
    for expert in range(experts.num_experts):
        one = _mlp(config, experts.intermediate_size, bias=False)
        shapes |= {f"experts.{expert}.{name}": shape for name, shape in one.items()}
    if experts.shared_intermediate_size:
        shared = _mlp(config, experts.shared_intermediate_size, config.mlp_bias)
        shapes |= {f"{SHARED[experts.shared_gate]}.{name}": shape for name, shape in shared.items()}
    if experts.shared_gate:
        shapes |= _linear("shared_expert_gate", 1, hidden)
    return shapes


def stays_float32(name: str) -> bool:
    """Whether a tensor is kept in float32 whatever the others are: a router and its correction, by which a token's
    experts are chosen."""
    return name.endswith((ROUTER, CORRECTION))


def stays_floats(name: str) -> bool:
    """Whether a matrix is never packed: a router, or one that latents are multiplied out with."""
    return stays_float32(name) or name.endswith(".kv_b_proj.weight")


def is_buffer(name: str) -> bool:
    """Whether old checkpoints store this name although it is computed: the rotary frequencies."""
    return name.endswith("rotary_emb.inv_freq")


def check_tensors(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Raises one WorkbenchError that names everything missing, unexpected or of another shape (first few of each)."""
    problems = []
    missing = [name for name in expected if name not in found]
    if missing:
        problems.append(f"{len(missing)} missing: {_few(missing)}")
    unexpected = [name for name in found if name not in expected]
    if unexpected:
        problems.append(f"{len(unexpected)} unexpected: {_few(unexpected)}")
    wrong = [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if wrong:
        problems.append(f"{len(wrong)} of another shape: {_few(wrong)}")
    if problems:
        raise WorkbenchError(f"the weights in {source} do not fit the model's configuration; {'; '.join(problems)}")


def _few(items: Iterable[str]) -> str:
    listed = list(items)
    rest = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + rest
