"""Which tensors a checkpoint must hold: one table, used to make dummy weights and to check real ones. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workbench.errors import WorkbenchError
from workbench.model.config import ModelConfig

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"

_SHOWN = 6


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face names and shapes of a supported model's tensors, in the order of the layers.

    Linear weights are ``[out, in]``. There is no ``lm_head.weight`` if the head is tied to the embedding.
    Raises UsageError if the decoder cannot run the model.
    """
    config.require_supported()
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}

    def linear(name: str, out: int, into: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (out, into)
        if bias:
            shapes[f"{name}.bias"] = (out,)

    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        linear(f"{prefix}.self_attn.q_proj", heads, hidden, config.qkv_bias)
        linear(f"{prefix}.self_attn.k_proj", kv_heads, hidden, config.qkv_bias)
        linear(f"{prefix}.self_attn.v_proj", kv_heads, hidden, config.qkv_bias)
        if config.qk_norm == "head":
            shapes[f"{prefix}.self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[f"{prefix}.self_attn.k_norm.weight"] = (config.head_dim,)
        linear(f"{prefix}.self_attn.o_proj", hidden, heads, config.o_bias)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        linear(f"{prefix}.mlp.gate_proj", inner, hidden, config.mlp_bias)
        linear(f"{prefix}.mlp.up_proj", inner, hidden, config.mlp_bias)
        linear(f"{prefix}.mlp.down_proj", hidden, inner, config.mlp_bias)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


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
