"""A byte-level BPE tokenizer as GGUF metadata: the way back from `workbench.text.gguf_tokenizer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.errors import UsageError
from workbench.text.gguf_tokenizer import PRE_TOKENIZERS, build_backend, cutting
from workbench.text.tokenizer import Tokenizer

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_IDS = {"unknown": "unk", "padding": "pad"}
PROBE = (
    "It's 1234567 o'clock, WE'LL see: x=3.14159;  y_2 = f(a,b)\r\n\r\n\tif (n != 0) { return -1; }   \n\n  "
    "Ångström e\u0301clair 한국어 文字 ١٢٣ 😀!? http://a.b/c?d=%20&e#f  $9,999.99 don't-DON'T  'tis\n \n\n end "
)
"""What the known rules for cutting text into words all cut differently."""


def tokenizer_metadata(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """All that a file says of a tokenizer, for a model whose table has ``vocab_size`` rows.

    Raises UsageError for another kind of tokenizer, and for one that cuts text by a rule that has no name here: a file
    would be read, and would give other ids now and then.
    """
    backend = tokenizer.transformers.backend_tokenizer
    told = json.loads(backend.to_str())
    model = told["model"]
    decoder = (told.get("decoder") or {}).get("type")
    if model["type"] != "BPE" or decoder != "ByteLevel":
        raise UsageError(f"the tokenizer is {model['type']} with decoder {decoder}; only byte-level BPE is written as "
                         "GGUF: write another format")  # fmt: skip
    by_id = {index: text for text, index in backend.get_vocab(with_added_tokens=True).items()}
    size = max(vocab_size, 1 + max(by_id))
    special = {one["id"]: one["special"] for one in told["added_tokens"]}
    kinds = {index: _CONTROL if is_special else _USER_DEFINED for index, is_special in special.items()}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    names = {name: getattr(tokenizer.transformers, f"{ours}_token_id") for name, ours in _IDS.items()}
    with_bos = tokenizer.bos_token_id is not None and tokenizer.transformers("a").input_ids[:1] == [
        tokenizer.bos_token_id
    ]
    found = {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": with_bos,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "",
        "tokenizer.ggml.tokens": [by_id.get(index, f"[PAD{index}]") for index in range(size)],
        "tokenizer.ggml.token_type": [
            kinds.get(index, _NORMAL) if index in by_id else _UNUSED for index in range(size)
        ],
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{name}_token_id": index for name, index in names.items() if index is not None},
    }
    if tokenizer.chat_template is not None:
        found["tokenizer.chat_template"] = tokenizer.chat_template
    found["tokenizer.ggml.pre"] = _rule(tokenizer, found)
    return found


def _rule(tokenizer: Tokenizer, metadata: dict[str, Any]) -> str:
    """The name under which the same text is cut into the same words, and these into the same tokens."""
    own = tokenizer.transformers.backend_tokenizer
    words = _words(own.normalizer, own.pre_tokenizer)
    for name in PRE_TOKENIZERS:
        if _words(*cutting(name)) != words:
            continue
        backend = build_backend({**metadata, "tokenizer.ggml.pre": name}, Path("the file"))
        if backend.encode(PROBE, add_special_tokens=False).ids == tokenizer.encode(PROBE):
            return name
    known = ", ".join(PRE_TOKENIZERS)
    raise UsageError(f"the tokenizer cuts text into words in a way that GGUF has no name for here (known: {known}): "
                     "write another format")  # fmt: skip


def _words(normalizer: Any, pre_tokenizer: Any) -> list[str]:
    text = normalizer.normalize_str(PROBE) if normalizer else PROBE
    return [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]
