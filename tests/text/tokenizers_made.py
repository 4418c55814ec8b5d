"""Small real tokenizers of other families, made on the spot: SentencePiece-like, WordPiece, and one with no decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from workbench.text.gguf_tokenizer import build_backend
from workbench.text.tokenizer import Tokenizer

CORPUS = ["the quick brown fox jumps over the lazy dog", "안녕하세요 세계", "don't panic, it's 42!", "a  b   c"] * 3
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def llama_like(strip: bool = True) -> Backend:
    """As Llama 2's: a space in front, ▁ for spaces, bytes for what the vocabulary lacks."""
    trained = Backend(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=120, initial_alphabet=["▁"], show_progress=False)
    trained.train_from_iterator([f"▁{text.replace(' ', '▁')}" for text in CORPUS], trainer)
    state = json.loads(trained.to_str())["model"]
    vocabulary = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", *BYTES, *state["vocab"]])}
    merges = [tuple(pair) for pair in state["merges"]]
    backend = Backend(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return backend


def of_bytes(pre: str) -> Backend:
    """Knows single bytes only, but cuts text as GGUF's ``tokenizer.ggml.pre`` says."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return build_backend(
        {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": letters,
         "tokenizer.ggml.merges": []}, Path("made"),
    )  # fmt: skip


def unnamed_cuts() -> Backend:
    """Cuts text in a way that GGUF has no name for."""
    backend = of_bytes("smollm")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), bytes_of])
    return backend


def metaspace() -> Backend:
    """As T5's: a unigram model over words that start with ▁."""
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def word_piece() -> Backend:
    """As BERT's: joins by its own rules, so bytes cannot be added up."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def no_decoder() -> Backend:
    backend = Backend(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", "</s>"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


MADE = {"llama": llama_like, "gemma": lambda: llama_like(False), "metaspace": metaspace, "wordpiece": word_piece}
MADE |= {"none": no_decoder}


def save(folder: Path, backend: Backend, **special: str) -> Path:
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(str(folder))
    return folder


def load(folder: Path, kind: str) -> Tokenizer:
    return Tokenizer.from_source(save(folder, MADE[kind]()))
