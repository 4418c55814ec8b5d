"""Notebook 01: bytes of the KV cache, the cost of a decode step, and the batch at which it stops being memory-bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from workbench.lab.exercise import Exercise, Mutant, Swap
from workbench.lab.exercise_cases import Example
from workbench.lab.exercises import nb01_cases as cases
from workbench.model.bits import bits_of
from workbench.model.config import ModelConfig
from workbench.model.cost import StepCost, weights_read
from workbench.plan import StepPlan

# The solutions. The text of each function, without what stands in its gap, is the skeleton in the notebook.


def kv_bytes_per_token(config: dict, bytes_per_value: float) -> float:
    """Bytes that one token adds to the KV cache, over all layers.

    config: a parsed config.json. bytes_per_value: what one stored number takes (2 for bfloat16, 0.5 for 4 bits).
    """
    # your turn: the numbers a token leaves behind; two keys may be missing or None
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * bytes_per_value
    # end


def decode_cost(config: dict, contexts: list[int], weight_size: float, kv_size: float) -> tuple[float, float]:
    """(FLOPs, bytes) of one decode step: one new token for each request, all in one batch.

    contexts: tokens that each request sees, the new one included. weight_size, kv_size: bytes that one weight and one
    number in the KV cache take. config: as in config.json, with every key that is used here.
    """
    layers, hidden, inner = config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, head_dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    # your turn: count weights, then what is multiplied and what moves
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    matrices = layers * (attention + 3 * hidden * inner) + config["vocab_size"] * hidden
    vectors = (2 * layers + 1) * hidden
    if config["attention_bias"]:
        vectors += layers * (heads + 2 * kv_heads) * head_dim
    if config["qk_norm"]:
        vectors += layers * 2 * head_dim
    seen, batch = sum(contexts), len(contexts)
    flops = 2 * matrices * batch + 4 * layers * heads * head_dim * seen
    kv_numbers = 2 * layers * kv_heads * head_dim * (seen + batch)
    return flops, (matrices + vectors) * weight_size + kv_numbers * kv_size
    # end


def ridge_batch(weight_bytes: float, kv_bytes: float, flops: float, bandwidth: float, peak: float) -> float:
    """The batch at which the arithmetic of a decode step takes as long as its reading; float("inf") if none does.

    weight_bytes: read once a step. kv_bytes, flops: of each request in a step. bandwidth: bytes a second. peak: FLOPs a
    second. The batch need not be a whole number.
    """
    # your turn: set the two times equal; when is there no solution above 0?
    gain = flops / peak - kv_bytes / bandwidth
    if gain <= 0:
        return float("inf")
    return weight_bytes / bandwidth / gain
    # end


# Their places in the engine.


def _in_model_config(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `ModelConfig.kv_bytes_per_token`: an LLM made meanwhile sizes its pool and counts its traffic with it."""

    def kv_bytes(self: ModelConfig, dtype: str | float | None = None) -> int:
        if self.latent is not None:
            return int(original(self, dtype))
        size = bits_of(self.dtype if dtype is None else dtype) / 8
        return math.ceil(function(cases.shape_of(self), size))

    return kv_bytes


def _in_step_cost(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """For `StepCost.of`: steps that only decode report it in their trace. Others, and models with parts that the
    exercise leaves out, are counted by the engine."""

    def of(self: StepCost, plan: StepPlan) -> tuple[int, int]:
        config = self.config
        left_out = config.o_bias or config.mlp_bias or config.qk_norm == "row" or any(self.windows)
        if left_out or not plan.scheduled or any(item.kind != "decode" for item in plan.scheduled):
            flops, num_bytes = original(self, plan)
        else:
            weight_size = self.weight_bytes / weights_read(config, samples=True)
            kv_size = self.kv_bytes_per_token / config.kv_bytes_per_token(8)
            contexts = [item.start + item.num_tokens for item in plan.scheduled]
            flops, num_bytes = function(cases.shape_of(config), contexts, weight_size, kv_size)
        return round(flops), round(num_bytes)

    return of


# The exercises.

_BARE = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 20}
_GROUPED = {**_BARE, "num_key_value_heads": 2, "head_dim": 8}
_SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 4,
    "intermediate_size": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "vocab_size": 5,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "qk_norm": False,
}
_UNTIED = {**_SMALL, "tie_word_embeddings": False}

EXERCISES = (
    Exercise(
        notebook="01",
        id="kv-bytes",
        title="Bytes of KV cache for each token, from config.json",
        difficulty=1,
        minutes=10,
        statement="Every token leaves one key vector and one value vector behind, for each KV head of each layer. "
        "Read the numbers from a parsed `config.json`. Two keys may be missing or hold `None`: without "
        "`num_key_value_heads` every attention head has its own keys and values, and without `head_dim` it is "
        "`hidden_size // num_attention_heads`.",
        function=kv_bytes_per_token,
        reference=cases.counted_kv_bytes,
        examples=(
            Example(
                (_GROUPED, 2),
                192,
                "3 layers × 2 KV heads × 8 numbers = 48 numbers; as keys and as values: 96; of 2 bytes each",
            ),
            Example(
                (_BARE, 1),
                120,
                "no num_key_value_heads: 4; no head_dim: 20 // 4 = 5",
            ),
        ),
        cases=cases.kv_bytes_cases,
        given={"grouped": _GROUPED, "bare": _BARE},
        hints=(
            "What does a later token need of an earlier one in order to attend to it, and in how many places?",
            "The numbers kept have the shape [layers, keys and values, KV heads, head_dim]; queries are not kept. "
            "`config.get(key)` gives None both for a key that is missing and for one that is null.",
            "Four factors and the size of a number: 2 for keys and values, the layers, `config.get("
            '"num_key_value_heads") or` the attention heads, and head_dim, found with `or` in the same way.',
        ),
        mutants=(
            Mutant("keys only", "return 2 * config", "return config"),
            Mutant("attention heads for KV heads", 'config.get("num_key_value_heads") or heads', "heads"),
            Mutant("head_dim never read", 'config.get("head_dim") or config', "config"),
            Mutant("one layer", 'config["num_hidden_layers"] * kv_heads', "kv_heads"),
            Mutant(
                "a null head_dim",
                'config.get("head_dim") or config["hidden_size"] // heads',
                'config.get("head_dim", config["hidden_size"] // heads)',
            ),
            Mutant("null KV heads", '.get("num_key_value_heads") or heads', '.get("num_key_value_heads", heads)'),
            Mutant("whole bytes only", "* bytes_per_value", "* int(bytes_per_value)"),
        ),
        swap=Swap("workbench.model.config", "ModelConfig", "kv_bytes_per_token", _in_model_config),
    ),
    Exercise(
        notebook="01",
        id="decode-cost",
        title="FLOPs and bytes of one decode step",
        difficulty=3,
        minutes=25,
        statement="Count the arithmetic and the memory traffic of one step in which every request computes one token "
        "and samples the next.\n\n"
        "A layer has the matrices q `[heads·head_dim, hidden]`, k and v `[kv_heads·head_dim, hidden]`, o `[hidden, "
        "heads·head_dim]` and three of an MLP, each of `inner × hidden` numbers; two norms of `hidden` numbers; biases "
        "of q, k and v if `attention_bias`; two norms of `head_dim` numbers if `qk_norm`. At the end stand one norm "
        "and the head `[vocab_size, hidden]`, which is the embedding table itself if `tie_word_embeddings`.\n\n"
        "FLOPs: 2 for each weight of a matrix and each token that passes it; in each layer and head 4 × head_dim for "
        "each token seen (its score, its share of the weighted sum). Norms, biases and softmax are left out. Bytes: "
        "each weight that takes part, once in a step; the keys and values of all tokens seen; those of the new token "
        "once more, for they are also written. Looking up a row of the embedding table is left out.",
        function=decode_cost,
        reference=cases.counted_decode_cost,
        given={"small": _SMALL, "untied": _UNTIED},
        examples=(
            Example(
                (_SMALL, [3], 1, 1),
                (256, 132),
                "q, o: 16 each; k, v: 8 each; MLP: 3 × 12; head: 20; together 104 in matrices and 12 in norms. "
                "2 × 104 + 4 × 2 × 2 × 3 = 256 FLOPs. 116 bytes of weights + 4 × (3 read + 1 written) = 132",
            ),
            Example((_SMALL, [3, 5], 2, 1), (544, 272), "weights are read once, however many requests share them"),
            Example((_UNTIED, [3], 1, 1), (256, 132), "an embedding table that is not the head is only looked up"),
        ),
        cases=cases.decode_cost_cases,
        hints=(
            "Which of the numbers grow with the batch, which with the contexts, and which with neither?",
            "FLOPs = batch × 2 × matrices + attention over sum(contexts). Bytes = matrices and vectors, once, + KV of "
            "sum(contexts) + batch tokens. The head is one of the matrices, tied or not; biases and norms are vectors.",
            "Per layer: attention = 2·hidden·heads·head_dim + 2·hidden·kv_heads·head_dim, MLP = 3·hidden·inner, "
            "vectors = 2·hidden (+ (heads + 2·kv_heads)·head_dim with biases, + 2·head_dim with q and k norms). Then "
            "the head and one more norm. A token in the KV cache is 2·layers·kv_heads·head_dim numbers.",
        ),
        mutants=(
            Mutant(
                "a tied head is not counted",
                'config["vocab_size"] * hidden',
                'config["vocab_size"] * hidden * (not config["tie_word_embeddings"])',
            ),
            Mutant(
                "an untied table is read",
                'config["vocab_size"] * hidden',
                'config["vocab_size"] * hidden * (2 - config["tie_word_embeddings"])',
            ),
            Mutant("biases forgotten", 'if config["attention_bias"]', "if False"),
            Mutant("q and k norms forgotten", 'if config["qk_norm"]', "if False"),
            Mutant("biases multiplied", "flops = 2 * matrices", "flops = 2 * (matrices + vectors)"),
            Mutant(
                "weights read for each request",
                "(matrices + vectors) * weight",
                "batch * (matrices + vectors) * weight",
            ),
            Mutant("the new token is not written", "(seen + batch)", "seen"),
            Mutant(
                "KV of all attention heads", "kv_numbers = 2 * layers * kv_heads", "kv_numbers = 2 * layers * heads"
            ),
            Mutant("scores of KV heads only", "4 * layers * heads", "4 * layers * kv_heads"),
            Mutant("scores without the sum", "+ 4 * layers", "+ 2 * layers"),
            Mutant("KV of the weights' size", "kv_numbers * kv_size", "kv_numbers * weight_size"),
            Mutant("the first context for all", "batch = sum(contexts)", "batch = contexts[0] * len(contexts)"),
            Mutant("hidden for heads × head_dim", "2 * hidden * heads * head_dim", "2 * hidden * hidden"),
        ),
        swap=Swap("workbench.model.cost", "StepCost", "of", _in_step_cost),
    ),
    Exercise(
        notebook="01",
        id="ridge",
        title="The batch at which decode stops being memory-bound",
        difficulty=2,
        minutes=10,
        statement="A decode step reads all weights once and, for each request, its keys and values; and it computes "
        "for each request. Reading takes bytes ÷ bandwidth, arithmetic takes FLOPs ÷ peak, and both go on at the same "
        "time, so the longer one decides. Find the batch at which they take equally long. There may be none: then the "
        'answer is `float("inf")`.',
        function=ridge_batch,
        reference=cases.searched_ridge,
        examples=(
            Example((100, 0, 2, 10, 20), 100.0, "reading: 10 s; arithmetic: 0.1 s for each request"),
            Example((100, 0.5, 2, 10, 20), 200.0, "each request also reads for 0.05 s, so it gains only 0.05 s"),
            Example((100, 1, 2, 10, 20), math.inf, "each request reads for as long as it computes"),
        ),
        cases=cases.ridge_cases,
        hints=(
            "What does one more request add to the time of reading, and what to the time of arithmetic?",
            "batch × flops / peak = (weight_bytes + batch × kv_bytes) / bandwidth. The batch stands on both sides.",
            "Let gain = flops / peak − kv_bytes / bandwidth. The batch is the weights' reading time over gain, and "
            "there is none unless gain is above 0.",
        ),
        mutants=(
            Mutant("KV forgotten", " - kv_bytes / bandwidth", ""),
            Mutant("no such batch is not noticed", "if gain <= 0", "if False"),
            Mutant("equal is not noticed", "if gain <= 0", "if gain < 0"),
            Mutant("zero for none", 'return float("inf")', "return 0.0"),
            Mutant("bytes for seconds", "weight_bytes / bandwidth / gain", "weight_bytes / gain"),
        ),
    ),
)
