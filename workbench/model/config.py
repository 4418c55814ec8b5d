"""ModelConfig: what a model is made of, and what that costs in parameters, bytes and arithmetic. No torch.

Any ``config.json`` of a decoder gets answers, including models this engine cannot run; `ModelConfig.require_supported`
says, by name, what stands in the way of running one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.attention.latent_shape import LatentAttention
from workbench.checks import read_json_object
from workbench.errors import UsageError, WorkbenchError
from workbench.model.architecture import FAMILIES, RUNNABLE, Experts, Family, RopeScaling, yarn_mscale
from workbench.model.bits import bits_of
from workbench.model.hf_config import read_fields


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by part. A tied head is the embedding and is counted once."""

    embedding: int
    attention: int
    mlp: int
    """Every expert and router included."""
    norm: int
    lm_head: int
    inactive: int
    """Those of ``mlp`` that one token does not pass through (experts it was not sent to)."""

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.mlp + self.norm + self.lm_head

    @property
    def active(self) -> int:
        """Parameters that take part in computing one token; the whole embedding table counts, as is the custom."""
        return self.total - self.inactive


QUANT_METHODS = ("compressed-tensors", "gptq", "awq")
"""``quant_method`` of the quantized checkpoints that are read."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only language model."""

    model_type: str
    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: str
    """``none``, ``head`` (RMSNorm over head_dim, before the rotation) or ``row`` (over all heads at once)."""
    sliding_window: int | None
    """Tokens a sliding layer sees, the token itself included; None = no layer slides."""
    sliding_layers: tuple[bool, ...]
    dtype: str
    hidden_act: str = "silu"
    partial_rotary_factor: float = 1.0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    quant_method: str | None = None
    latent: LatentAttention | None = None
    """With it ``head_dim`` is the width of a query's and a key's head, rotated part included."""
    experts: Experts | None = None
    prediction_layers: int = 0
    """Layers that a checkpoint holds after the last to predict further tokens; neither run nor counted."""

    @classmethod
    def from_dict(cls, hf: dict[str, Any], source: str = "config.json") -> ModelConfig:
        """From a parsed Hugging Face config. Raises WorkbenchError that names ``source``, the key, the value and the
        limit for one that is missing or impossible."""
        return cls(**read_fields(hf, source))

    @classmethod
    def from_path(cls, path: str | Path) -> ModelConfig:
        """From a ``config.json`` or the folder that holds one. Raises WorkbenchError if it is missing or damaged."""
        file = Path(path)
        file = file / "config.json" if file.is_dir() else file
        if not file.exists():
            raise WorkbenchError(f"there is no {file}: a model folder needs a config.json")
        return cls.from_dict(read_json_object(file), str(file))

    # What the decoder asks for.

    def window(self, layer: int) -> int | None:
        """Tokens that ``layer`` sees, the token itself included; None = all before it."""
        return self.sliding_window if self.sliding_layers[layer] else None

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that are rotated."""
        return self.latent.qk_rope_head_dim if self.latent else self.head_dim

    @property
    def softmax_scale(self) -> float:
        """What scores are multiplied with."""
        scale: float = self.head_dim**-0.5
        if self.latent is not None and self.rope_scaling is not None and self.rope_scaling.mscale_all_dim:
            scale *= yarn_mscale(self.rope_scaling.factor, self.rope_scaling.mscale_all_dim) ** 2
        return scale

    def unsupported(self) -> list[str]:
        """What this engine's decoder cannot run in this model, each in a few words; empty = it runs."""
        found: list[str] = []
        found += self._unsupported_parts()
        if self.model_type not in RUNNABLE:
            found.append(f"model_type {self.model_type!r} (supported: {', '.join(RUNNABLE)})")
        if self.rope_scaling is not None and self.rope_scaling.kind not in ("linear", "llama3", "yarn"):
            found.append(f"rope scaling {self.rope_scaling.kind!r} (supported: default, linear, llama3, yarn)")
        if self.partial_rotary_factor != 1.0:
            found.append(f"partial_rotary_factor={self.partial_rotary_factor} (supported: 1.0)")
        if self.hidden_act not in ("silu", "swish"):
            found.append(f"hidden_act {self.hidden_act!r} (supported: silu)")
        if self.quant_method not in (None, *QUANT_METHODS):
            supported = ", ".join(QUANT_METHODS)
            found.append(f"weights quantized with {self.quant_method!r} (supported: float weights, GGUF, {supported})")
        if self.rotary_dim % 2:
            name = "qk_rope_head_dim" if self.latent else "head_dim"
            found.append(f"{name}={self.rotary_dim} is odd, so it cannot be rotated in pairs")
        return found

    def _unsupported_parts(self) -> list[str]:
        """Of latent attention and of experts."""
        found: list[str] = []
        family = self._family
        if self.latent is not None and not family.latent:
            found.append("multi-head latent attention (kv_lora_rank) in this family")
        if self.latent is None and family.latent:
            found.append("this family without latent attention (no kv_lora_rank)")
        if self.experts is None:
            return found
        routing = self.experts.routing
        if family.routing is None:
            return [*found, f"a mixture of experts ({self.experts.num_experts} experts) in this family"]
        if routing.scoring != family.routing.scoring:
            found.append(f"scoring_func {routing.scoring!r} (supported in this family: {family.routing.scoring})")
        if routing.method not in family.methods:
            found.append(f"topk_method {routing.method!r} (supported in this family: {', '.join(family.methods)})")
        if routing.normalized and not family.normalizes:
            found.append("norm_topk_prob=true in this family, of which implementations disagree (supported: false)")
        return found

    def require_supported(self) -> None:
        """Raises UsageError that names everything the decoder cannot run in this model."""
        found = self.unsupported()
        if found:
            raise UsageError(f"{self.architecture} cannot run here: {'; '.join(found)}")

    # What the model costs.

    @property
    def attention_kind(self) -> str:
        """``MHA``, ``GQA``, ``MQA`` or ``MLA``, by the KV heads there are for each query head."""
        if self.latent is not None:
            return "MLA"
        if self.num_kv_heads == self.num_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    @property
    def gated_mlp(self) -> bool:
        """Whether the MLP multiplies a gate into its middle (SwiGLU and its kind): one matrix more."""
        return self._family.gated_mlp

    @property
    def counted_exactly(self) -> bool:
        """Whether the family is known, so that parameters are exact; otherwise they are an estimate."""
        return self.model_type in FAMILIES

    @property
    def num_parameters(self) -> int:
        return self.parameters().total

    def parameters(self) -> ParameterCount:
        """Parameters by part, as transformers builds the model (without buffers and extra prediction layers)."""
        family, hidden = self._family, self.hidden_size
        norm = hidden * (2 if family.norm_bias else 1)
        norms = (family.norms_per_layer * self.num_layers + 1) * norm + self.num_layers * self._inner_norms()
        positions = self.max_position_embeddings * hidden if family.learned_positions else 0
        mlp, active_mlp = self._mlp_totals(with_bias=True)
        return ParameterCount(
            embedding=self.vocab_size * hidden + positions,
            attention=self.num_layers * (self._attention_weights() + self._attention_biases()),
            mlp=mlp,
            norm=norms,
            lm_head=0 if self.tie_word_embeddings else self.vocab_size * hidden,
            inactive=mlp - active_mlp,
        )

    def weight_bytes(self, dtype: str | float | None = None) -> int:
        """Bytes of all parameters, stored alike. ``dtype``: a name or bits per number; default: the config's own."""
        return math.ceil(self.num_parameters * bits_of(self.dtype if dtype is None else dtype) / 8)

    def kv_bytes_per_token(self, dtype: str | float | None = None) -> int:
        """Bytes that one token adds to the KV cache, over all layers.

        Keys and values: 2 × layers × kv_heads × head_dim. Latent attention: layers × (kv_lora_rank + qk_rope_head_dim).
        A sliding layer stops growing once its window is full.
        """
        numbers = self.num_layers * math.prod(self.cached_shape)
        return math.ceil(numbers * bits_of(self.dtype if dtype is None else dtype) / 8)

    @property
    def cached_shape(self) -> tuple[int, ...]:
        """What one token has in one layer's cache: ``[2, num_kv_heads, head_dim]``, keys and values, or one latent."""
        return (self.latent.cached_width,) if self.latent else (2, self.num_kv_heads, self.head_dim)

    def flops_per_token(self, context: int) -> int:
        """Arithmetic to compute one token that sees ``context`` tokens, itself included.

        2 for each weight it is multiplied with (attention, active MLP, router, head: one multiply, one add), and
        4 × heads × head_dim for each token seen in each layer (scores, then the weighted sum). Left out, as is the
        custom: norms, rotation, softmax, biases, the embedding lookup. Latent attention: keys and values rebuilt.
        """
        weights = self.num_layers * self._attention_weights() + self._mlp_totals(with_bias=False)[1]
        weights += self.vocab_size * self.hidden_size
        seen = sum(min(context, self.window(layer) or context) for layer in range(self.num_layers))
        return 2 * weights + 2 * seen * self.num_heads * (self.head_dim + self._value_dim)

    @property
    def _family(self) -> Family:
        # Of a family that is not known: gates came with SiLU; those who kept GELU or ReLU mostly kept the plain MLP.
        return FAMILIES.get(self.model_type) or Family(gated_mlp=self.hidden_act in ("silu", "swish"))

    @property
    def _value_dim(self) -> int:
        return self.latent.v_head_dim if self.latent else self.head_dim

    def _attention_weights(self) -> int:
        """Weights of one layer's attention projections, biases not included."""
        hidden, query, output = self.hidden_size, self.num_heads * self.head_dim, self.num_heads * self._value_dim
        if self.latent is None:
            return hidden * (query + 2 * self.num_kv_heads * self.head_dim + output)
        rank = self.latent.q_lora_rank
        queries = hidden * query if rank is None else rank * (hidden + query)
        latent = hidden * (self.latent.kv_lora_rank + self.latent.qk_rope_head_dim)
        rebuilt = self.latent.kv_lora_rank * self.num_heads * (self.latent.qk_nope_head_dim + self.latent.v_head_dim)
        return queries + latent + rebuilt + output * hidden

    def _attention_biases(self) -> int:
        out = self.hidden_size if self.o_bias else 0
        if not self.qkv_bias:
            return out
        if self.latent is None:
            return out + self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        return out + (self.latent.q_lora_rank or 0) + self.latent.kv_lora_rank + self.latent.qk_rope_head_dim

    def _inner_norms(self) -> int:
        """Norm weights inside one layer's attention."""
        if self.latent is not None:
            return self.latent.kv_lora_rank + (self.latent.q_lora_rank or 0)
        heads = {"none": 0, "head": 2, "row": self.num_heads + self.num_kv_heads}[self.qk_norm]
        return heads * self.head_dim

    def _mlp_totals(self, with_bias: bool) -> tuple[int, int]:
        """Parameters of all layers' MLPs: (all of them, those one token passes through)."""
        gates = 2 if self.gated_mlp else 1

        def one(width: int) -> int:
            bias = gates * width + self.hidden_size if with_bias and self.mlp_bias else 0
            return (gates + 1) * self.hidden_size * width + bias

        dense = one(self.intermediate_size)
        if self.experts is None:
            return (self.num_layers * dense,) * 2
        experts = self.experts
        sparse = sum(experts.sparse_layers)
        common = self.hidden_size * (experts.num_experts + experts.shared_gate)
        common += one(experts.shared_intermediate_size) if experts.shared_intermediate_size else 0
        fixed = sparse * common + (self.num_layers - sparse) * dense
        expert = (gates + 1) * self.hidden_size * experts.intermediate_size  # whatever mlp_bias says
        return fixed + sparse * experts.num_experts * expert, fixed + sparse * experts.experts_per_token * expert
