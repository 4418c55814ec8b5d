"""Writes tokenizer_goldens.json: token ids from llama.cpp, which shares no code with the tokenizers library.

Not run by tests. In an environment of its own (`pip install llama-cpp-python gguf tokenizers`; compiles for minutes):
    python make_tokenizer_goldens.py path/to/SmolLM2-135M-Instruct.Q4_1.gguf
Each pre-tokenizer is also asked with a vocabulary made here, whose merges run over every place where one may cut.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PRE_TOKENIZERS = ("smollm", "gpt-2", "llama-bpe", "qwen2", "default")

WRITTEN = [
    "",
    "Hello",
    "Hello, world! It's 7 o'clock; don't you'll we've I'D SHE'S.",
    "The capital of France is",
    " leading and trailing ",
    "a  b   c    d",
    "  42",
    "a   123   4567",
    "1 22  333   4444    55555",
    "3.14159 -2,71828e+10 0x1F 1/2 ½ ² Ⅷ ٣٤",
    "\n",
    "\n\n\n  \n\tx\n   y\r\n\r\nz \n ",
    "\t\t1\t 2",
    "안녕하세요, 세계! 오늘은 2024년 3월 5일입니다.",
    "  한국어  띄어쓰기   12 개",
    "훈민정음 ᄒᆞᆫ글 \u1112\u1161\u11ab",
    "中文分词 和日本語のトークン化 Привет мир مرحبا",
    "😀😃 👩‍👩‍👧‍👦 🇰🇷 👍🏽 ❤️",
    "naïve café e\u0301 \u00a0\u3000\u2028\u200b\ufeff end",
    "def f(x, *args, **kw):\n    if x <= 10:\n        return [i**2 for i in range(x)]  # squares\n\treturn None\n",
    "for (int i = 0; i < 1000; ++i) { a[i] += b[i]->c * 0.5f; }\n",
    "<html><body class=\"x\">&nbsp;</body></html>",
    '{"key": [1, 2, {"nested": "값"}], "n": -1.5e-3}',
    "https://example.org/a/b?c=1&d=%20#frag",
    "$x^2 + y^2 = z^2$ ~ |a| <= b > c",
    "SELECT * FROM t WHERE id=42 AND name LIKE '%o''k%';",
    "CamelCaseIdentifier snake_case_identifier SCREAMING_CASE kebab-case",
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\n12 + 30?<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|>b <|endoftext|> <|im_start|><|im_start|> <|im_sta rt|> <|unknown|>",
    "<repo_name>x<file_sep>y.py\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "antidisestablishmentarianism Donaudampfschifffahrtsgesellschaft",
    "\x00\x01\x04\x7f control \x1b[31m",
    "\U0010ffff \U000e0041 \U00050000 rare planes",
]  # fmt: skip

_PARTS = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "1", "23", "4567", "12345678", "a", "the", "The", " world"]
_PARTS += [
    "don't",
    "I'LL",
    "'s",
    "'",
    '"',
    "(",
    ")",
    "+=",
    "<=",
    "$",
    "^",
    "|",
    "#",
    "_",
    "...",
    "?!",
    "안녕",
    "하세요",
]
_PARTS += [
    " 세계",
    "😀",
    "👩‍👩‍👧",
    "é",
    "中文",
    "Привет",
    "٣",
    "½",
    "\u00a0",
    "\u2028",
    "<|im_end|>",
    "<|im_",
    "    return",
    "x1y2",
]


# Of the vocabulary made for telling pre-tokenizers apart.
VOCABULARY_SIZE = 1500
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def main(model: str) -> None:
    generator = random.Random(0)
    texts = WRITTEN + ["".join(generator.choices(_PARTS, k=generator.randint(2, 16))) for _ in range(80)]
    vocabulary = made_vocabulary(texts)
    ids = {}
    with tempfile.TemporaryDirectory() as folder:
        for pre in PRE_TOKENIZERS:
            ids[pre] = ask(vocabulary_file(vocabulary, pre, Path(folder) / f"{pre}.gguf"), texts)
    result = {
        "source": f"llama.cpp through llama-cpp-python {llama_cpp.__version__}: add_bos=False, special=True",
        "model_sha256": hashlib.sha256(Path(model).read_bytes()).hexdigest(),
        "texts": texts,
        "model_ids": ask(Path(model), texts),
        "vocabulary": vocabulary,
        "ids": ids,
    }
    # One list a line: a changed golden is then one changed line.
    rows = json.dumps(result, ensure_ascii=True, separators=(",", ":")).replace("],[", "],\n[")
    Path(__file__).with_name("tokenizer_goldens.json").write_text(rows + "\n", encoding="ascii")


def ask(path: Path, texts: list[str]) -> list[list[int]]:
    asked = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return [asked.tokenize(text.encode(), add_bos=False, special=True) for text in texts]


def made_vocabulary(texts: list[str]) -> dict[str, list[Any]]:
    """Byte-level BPE trained on uncut texts: its merges run over words, digits and line ends, so that each place where
    a pre-tokenizer cuts changes the ids. (The model's own vocabulary has no token of two digits, whatever the rule.)"""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY_SIZE, initial_alphabet=alphabet, show_progress=False)
    plain = [part for text in texts for part in re.split(r"<\|\w+\|>", text)]
    backend.train_from_iterator(plain * 2, trainer)
    state = json.loads(backend.to_str())["model"]
    tokens = CONTROL + sorted(state["vocab"], key=state["vocab"].__getitem__)
    merges = [" ".join(pair) for pair in state["merges"]]
    return {"tokens": tokens, "merges": merges, "token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL))}


def vocabulary_file(vocabulary: dict[str, list[Any]], pre: str, path: Path) -> Path:
    """A GGUF file with a tokenizer and no weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["token_type"])
    writer.add_token_merges(vocabulary["merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


if __name__ == "__main__":
    main(sys.argv[1])
