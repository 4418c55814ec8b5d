"""A tiny Llama trained within seconds on the engine's own source, so that a change of its heads has something to harm.

It reads bytes. What it learns is next to nothing: indentation, keywords, names. It is saved as a folder that the engine
loads like any other model, and can be trained on from such a folder.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch.nn import functional

from workbench.errors import UsageError
from workbench.model.config import ModelConfig
from workbench.model.threads import one_thread
from workbench.model.weights.dummy import dummy_weights
from workbench.model.weights.files import load_safetensors

if TYPE_CHECKING:
    from workbench.lab.lesson import Lesson
    from workbench.llm import LLM

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
"""Its ``config.json``: 8 query heads with a KV head each."""
WINDOW = 96
"""Bytes of a piece of text that it learns from."""
_BATCH = 16
_RATE = 6e-3
_JUDGED_BY = 8
"""Pieces of text kept apart."""
Weights = dict[str, torch.Tensor]


class Judged(NamedTuple):
    """What the engine makes of a saved model."""

    llm: LLM
    logits: torch.Tensor
    """``[tokens, vocab_size]`` on text that it has not seen, one piece after another"""
    perplexity: float
    """e to the mean loss: among how many bytes it is still choosing."""


def engine_source() -> tuple[bytes, bytes]:
    """The text to learn from, and text from the same hands that is kept apart to judge by."""
    files = sorted((Path(__file__).parents[1] / "engine").glob("*.py"))
    held_out = [file for file in files if file.name == "scheduler.py"]
    rest = [file for file in files if file not in held_out]
    return b"".join(map(Path.read_bytes, rest)), b"".join(map(Path.read_bytes, held_out))


@one_thread()
def train(folder: Path, steps: int, begin: Path | None = None, seed: int = 0, device: str = "cpu") -> list[float]:
    """Trains a model for so many steps and saves it in ``folder``; returns the loss of each step, in nats a byte.

    From the model in ``begin`` on, or a new one of `SHAPE`. The same arguments give the same model on one machine.
    """
    if type(steps) is not int or steps < 1:
        raise UsageError(f"steps={steps!r}: give a whole number of at least 1")
    raw = SHAPE if begin is None else json.loads((begin / "config.json").read_text(encoding="utf-8"))
    config = ModelConfig.from_dict(raw)
    fresh = dummy_weights(config, seed) if begin is None else load_safetensors(begin)
    weights = {name: tensor.float().to(device).requires_grad_() for name, tensor in fresh}
    text = torch.frombuffer(bytearray(engine_source()[0]), dtype=torch.uint8).long()
    draw = torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.AdamW(weights.values(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    losses = []
    for step in range(steps):
        starts = torch.randint(len(text) - WINDOW - 1, (_BATCH,), generator=draw)
        pieces = text[starts[:, None] + torch.arange(WINDOW + 1)].to(device)
        warm, left = min(1.0, (step + 1) / 10), 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = _RATE * warm * left
        scores = forward(weights, config, pieces[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
        losses.append(loss.item())
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    save_file(kept, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    return losses


def unseen() -> list[list[int]]:
    """Pieces of the text kept apart, as tokens."""
    text = engine_source()[1]
    return [list(text[start : start + WINDOW]) for start in range(0, _JUDGED_BY * WINDOW, WINDOW)]


def judge(lesson: Lesson, folder: Path) -> Judged:
    """Opens the model that lies in ``folder`` in the engine and has it read `unseen`."""
    llm = lesson.llm(model=str(folder), num_kv_blocks=16, quantization="none")
    logits = [llm.runner.logits(piece).float().cpu() for piece in unseen()]
    losses = [functional.cross_entropy(one[:-1], torch.tensor(p[1:])) for one, p in zip(logits, unseen(), strict=True)]
    return Judged(llm, torch.cat(logits), math.exp(sum(losses) / len(losses)))


def forward(weights: Weights, config: ModelConfig, tokens: torch.Tensor) -> torch.Tensor:
    """Scores of the next byte, ``[batch, length, vocab_size]``, as the engine computes them, but to be trained."""
    stream = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config.num_layers):
        own = {
            name.removeprefix(f"model.layers.{layer}.").removesuffix(".weight"): tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        hidden = _norm(stream, own["input_layernorm"], config)
        q, k, v = (_heads(hidden @ own[f"self_attn.{part}_proj"].T, config.head_dim) for part in "qkv")
        q, k = _turned(q, config), _turned(k, config)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        stream = stream + attended.transpose(1, 2).flatten(2) @ own["self_attn.o_proj"].T
        hidden = _norm(stream, own["post_attention_layernorm"], config)
        middle = functional.silu(hidden @ own["mlp.gate_proj"].T) * (hidden @ own["mlp.up_proj"].T)
        stream = stream + middle @ own["mlp.down_proj"].T
    return _norm(stream, weights["model.norm.weight"], config) @ weights["model.embed_tokens.weight"].T


def _heads(flat: torch.Tensor, head_dim: int) -> torch.Tensor:
    return flat.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def _norm(x: torch.Tensor, weight: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight, config.rms_norm_eps)


def _turned(x: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Rotated by position, channels half a head apart as a pair."""
    half = config.head_dim // 2
    rates = config.rope_theta ** -(torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[2], device=x.device)[:, None] * rates
    first, second = x.split(half, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
