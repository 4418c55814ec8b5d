"""Right answers for the exercises of notebook 01, found by counting, and the cases they are checked with."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

from workbench.lab.exercise_cases import Case, fixed
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config, shipped_names


def shape_of(config: ModelConfig) -> dict[str, Any]:
    """A config as the exercises see it: the keys of ``config.json``, none missing, and ``qk_norm``."""
    return {
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.qkv_bias,
        "qk_norm": config.qk_norm == "head",
    }


def _random_shape(draw: Random) -> dict[str, Any]:
    kv_heads, group, head_dim = draw.choice([1, 2, 3, 4]), draw.choice([2, 3, 5]), draw.choice([16, 24, 32, 80])
    return {
        "num_hidden_layers": draw.randint(2, 9),
        # Not heads × head_dim, as in Qwen3: a model may choose.
        "hidden_size": 8 * draw.randint(9, 40),
        "intermediate_size": draw.randint(70, 400),
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": draw.randint(300, 900),
        "tie_word_embeddings": draw.random() < 0.5,
        "attention_bias": draw.random() < 0.5,
        "qk_norm": draw.random() < 0.3,
    }


# kv-bytes


def counted_kv_bytes(config: dict[str, Any], bytes_per_value: float) -> float:
    """One number after the other."""
    heads = config["num_attention_heads"]
    shared, width = config.get("num_key_value_heads"), config.get("head_dim")
    shared = heads if shared is None else shared
    width = config["hidden_size"] // heads if width is None else width
    numbers = 0
    for _layer in range(config["num_hidden_layers"]):
        for _kind in ("key", "value"):
            for _head in range(shared):
                numbers += len(range(width))
    return numbers * bytes_per_value


def kv_bytes_cases() -> list[Case]:
    draw = Random("kv-bytes")
    cases = []

    def add(family: str, name: str, config: dict[str, Any], size: float, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(config, size), counted_kv_bytes, help=help_))

    for number in range(8):
        add("random", f"config {number}", _random_shape(draw), draw.choice([1, 2, 4]))
    for name in shipped_names():
        help_ = "head_dim stands in the file and is not hidden_size // heads" if "qwen3" in name else ""
        add("public models", name, shipped_config(name), 2, help_)
    for number, missing in enumerate((["head_dim"], ["num_key_value_heads"], ["num_key_value_heads", "head_dim"])):
        shape = _random_shape(draw)
        shape["hidden_size"] = shape["num_attention_heads"] * 8 * (number + 3)
        words = " and ".join(missing)
        add("missing keys", f"no {words}", {k: v for k, v in shape.items() if k not in missing}, 2, f"{words}: absent")
        null = {**shape, **dict.fromkeys(missing)}
        add("missing keys", f"{words} null", null, 2, "a key may be there and hold null, which is None in Python")
    one = {**_random_shape(draw), "num_hidden_layers": 1, "num_key_value_heads": 1}
    add("single", "one layer, one KV head", one, 2)
    add("fractions", "4-bit numbers", _random_shape(draw), 0.5, "two 4-bit numbers share a byte: 0.5 bytes each")
    add("fractions", "4-bit numbers and their scales", _random_shape(draw), 0.5625)
    return cases


# decode-cost


def counted_decode_cost(
    config: dict[str, Any], contexts: list[int], weight_size: float, kv_size: float
) -> tuple[float, float]:
    """From the list of the checkpoint's tensors, then one request, layer, and visible token after the other."""
    from workbench.model.weights.expected import EMBEDDING, expected_tensors

    full = replace(
        ModelConfig.from_dict({**config, "model_type": "llama"}),
        qkv_bias=config["attention_bias"],
        o_bias=False,
        qk_norm="head" if config["qk_norm"] else "none",
    )
    flops, num_bytes = 0, 0.0
    for name, shape in expected_tensors(full).items():
        if name == EMBEDDING and not full.tie_word_embeddings:
            continue  # one row of it is looked up; the head is another tensor
        num_bytes += math.prod(shape) * weight_size
        if len(shape) == 2:
            flops += 2 * math.prod(shape) * len(contexts)
    for context in contexts:
        for _layer in range(full.num_layers):
            for _seen in range(context):
                flops += 2 * full.num_heads * full.head_dim  # its score
                flops += 2 * full.num_heads * full.head_dim  # its share of the weighted sum
                num_bytes += 2 * full.num_kv_heads * full.head_dim * kv_size  # read
            num_bytes += 2 * full.num_kv_heads * full.head_dim * kv_size  # the new token's, written
    return flops, num_bytes


def decode_cost_cases() -> list[Case]:
    draw = Random("decode-cost")
    cases = []

    def add(family: str, name: str, shape: dict[str, Any], contexts: list[int], sizes: Any, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(shape, contexts, *sizes), counted_decode_cost, help=help_))

    for number in range(8):
        contexts = draw.sample(range(1, 90), draw.randint(2, 6))
        add("random", f"config {number}", _random_shape(draw), contexts, draw.choice([(2, 2), (4, 4), (2, 1)]))
    for number, flag in enumerate(["tie_word_embeddings", "attention_bias", "qk_norm"]):
        for value in (True, False):
            shape = {**_random_shape(draw), flag: value}
            add("one flag", f"{flag} is {value}", shape, [7 + number, 30], (2, 2), _FLAGS[flag])
    for name in shipped_names():
        shape = shape_of(ModelConfig.from_dict(shipped_config(name)))
        add("public models", name, shape, [draw.randint(5, 60), 200], (2, 2))
    add("ragged", "contexts far apart", _random_shape(draw), [1, 400, 2, 33], (2, 2), "contexts differ: add them up")
    add("single", "one request, its first token", _random_shape(draw), [1], (2, 2), "the token itself is seen, too")
    add("sizes", "weights of 4 bits", _random_shape(draw), [12, 40], (0.5, 2), "weights and KV have sizes of their own")
    add("sizes", "KV of 8 bits", _random_shape(draw), [12, 40], (4, 1), "weights and KV have sizes of their own")
    return cases


_FLAGS = {
    "tie_word_embeddings": "the head's matrix is read and multiplied whether or not it is also the embedding table; "
    "the table itself is only looked up",
    "attention_bias": "biases are read and added: they count as bytes, not as multiplications",
    "qk_norm": "two vectors of head_dim in each layer",
}


# ridge


def searched_ridge(weight_bytes: float, kv_bytes: float, flops: float, bandwidth: float, peak: float) -> float:
    """By halving the interval in which arithmetic begins to take longer than reading."""

    def computes_longer(batch: float) -> bool:
        return batch * flops / peak > (weight_bytes + batch * kv_bytes) / bandwidth

    low, high = 0.0, 1.0
    while not computes_longer(high):
        high *= 2
        if high > 1e15:
            return math.inf
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if computes_longer(middle) else (middle, high)
    return high


def ridge_cases() -> list[Case]:
    draw = Random("ridge")
    cases = []

    def add(family: str, name: str, *arguments: float, help_: str = "") -> None:
        cases.append(Case(family, name, fixed(*arguments), searched_ridge, relative=1e-6, help=help_))

    for number in range(8):
        weights, flops, bandwidth = draw.randint(10**8, 10**10), draw.randint(10**8, 10**10), draw.uniform(1e10, 5e12)
        peak = bandwidth * draw.uniform(5, 400)
        break_even = flops * bandwidth / peak
        add("random", f"{number}, short context", weights, break_even * draw.uniform(0.05, 0.7), flops, bandwidth, peak)
        if number < 3:
            more = break_even * draw.uniform(1.2, 9)
            help_ = "every request brings more reading than arithmetic, so a larger batch never turns it round"
            add("never", f"{number}, long context", weights, more, flops, bandwidth, peak, help_=help_)
    add("no KV", "without a cache to read", 10**9, 0, 2 * 10**9, 4e10, 1e12)
    add("data sheet", "8B parameters in 16 bits, 1,000 tokens", 16.1e9, 131e6, 16.6e9, 3.35e12, 989e12)
    return cases
