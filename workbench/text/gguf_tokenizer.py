"""A byte-level BPE tokenizer built from what a GGUF file says: tokens, merges, token types and a pre-tokenizer's name.

The name (``tokenizer.ggml.pre``) stands for the rule that cuts text into words before merging. It must be known well,
for a near miss gives other ids only now and then: plain GPT-2 splitting differs from SmolLM's only where digits meet.
Sources of the rules: the published tokenizers of the models, llama.cpp's ``llama-vocab.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from workbench.errors import UsageError, WorkbenchError

_PREFIX = "tokenizer.ggml."
# Token types of the format: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
_CONTROL, _USER_DEFINED = 3, 4

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Like GPT-2's, but contractions in any case, a letter run may take one leading symbol, newlines stay together, and
# digits come in runs of at most {digits}.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{digits}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Pre-tokenizer name -> patterns; each cuts what the one before left.
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    "smollm": (r"\p{N}", _GPT2),
    "gpt-2": (_GPT2,),
    "llama-bpe": (_LLAMA3.replace("{digits}", "{1,3}"),),
    "qwen2": (_LLAMA3.replace("{digits}", ""),),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}


def build_backend(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer a GGUF file describes.

    Args:
        metadata: the file's metadata.
        path: named in errors.

    Raises:
        UsageError: a tokenizer model other than byte-level BPE, or a pre-tokenizer of an unknown name.
        WorkbenchError: the file has no tokenizer, or not all of it.
    """
    kind, pre = metadata.get(f"{_PREFIX}model"), metadata.get(f"{_PREFIX}pre", "default")
    if kind is None:
        raise WorkbenchError(f"{path} holds no tokenizer: give one with --tokenizer")
    if kind != "gpt2":
        raise UsageError(f"{path}: tokenizer model {kind!r} is not supported (supported: gpt2, that is byte-level BPE)")
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise UsageError(f"{path}: pre-tokenizer {pre!r} is not supported; supported: {known}")
    tokens, merges = metadata.get(f"{_PREFIX}tokens"), metadata.get(f"{_PREFIX}merges")
    if not tokens or merges is None:
        raise WorkbenchError(f"{path} is damaged: its tokenizer lacks tokens or merges")

    vocabulary = {text: index for index, text in enumerate(tokens)}
    # A token's first character is never the separator, even if that is a space.
    cuts = [(merge, merge.index(" ", 1)) for merge in merges]
    pairs = [(merge[:cut], merge[cut + 1 :]) for merge, cut in cuts]
    # Llama 3 looks a whole word up before merging its letters.
    backend = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe"))
    backend.normalizer, backend.pre_tokenizer = cutting(pre)
    backend.decoder = decoders.ByteLevel()

    typed = list(zip(tokens, metadata.get(f"{_PREFIX}token_type", []), strict=False))
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in typed if kind == _CONTROL])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t, kind in typed if kind == _USER_DEFINED])
    return backend


def cutting(pre: str) -> tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer]:
    """How the text is changed and cut into words before merging, by the name of a pre-tokenizer."""
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in PRE_TOKENIZERS[pre]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return normalizers.NFC() if pre == "qwen2" else None, pre_tokenizers.Sequence([*splits, to_bytes])


def special_token(metadata: Mapping[str, Any], name: str) -> str | None:
    """The text of the ``bos``, ``eos``, ``unknown`` or ``padding`` token, None if the file names none."""
    index = metadata.get(f"{_PREFIX}{name}_token_id")
    return None if index is None else str(metadata[f"{_PREFIX}tokens"][index])
