"""Tokenizer: text to ids and back, for a Hugging Face folder or a GGUF file.

A thin wrapper round `tokenizers`: it adds no tokens of its own, cleans nothing up, and knows which bytes each token
stands for, so that text can be put together one token at a time (`detokenizer.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.checks import as_token_ids, read_json_object, shown
from workbench.errors import UsageError, WorkbenchError
from workbench.gguf_file import GGUFFile, eos_token_ids
from workbench.text.pieces import Pieces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ROLES = ("system", "developer", "user", "assistant", "tool")


class Tokenizer:
    """Text to token ids and back.

    ``decode(encode(text)) == text`` for any text that the vocabulary can write and the tokenizer does not normalize.
    The default model's vocabulary lacks six control characters and the bytes that start characters from U+40000 to
    U+BFFFF: `encode` leaves them out, as the original tokenizer does. Qwen's normalizes to NFC; SentencePiece ones
    (Llama 2, Mistral) put a space in front of a text and take it off again.
    """

    def __init__(self, fast: PreTrainedTokenizerFast, eos: tuple[int, ...]) -> None:
        self.transformers = fast
        """The wrapped `transformers` tokenizer."""
        self.eos_token_ids = eos
        """Tokens that end a text; several for models that also end turns or messages."""
        self._backend = fast.backend_tokenizer
        self._pieces = Pieces.of(self._backend)

    @classmethod
    def from_source(cls, path: str | Path) -> Tokenizer:
        """Loads the tokenizer of a Hugging Face folder or a ``.gguf`` file.

        Raises:
            UsageError: a kind of tokenizer that is not supported, by name.
            WorkbenchError: nothing there, or a file that is missing or damaged.
        """
        source = Path(path)
        if source.is_dir():
            return _from_folder(source)
        if source.is_file():
            return _from_gguf(source)
        raise WorkbenchError(f"no tokenizer at {source}: expected a model folder or a .gguf file")

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added ones included. A model's table may be taller (padding rows)."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def special_token_ids(self) -> frozenset[int]:
        """The ids that ``skip_special_tokens`` leaves out."""
        return self._pieces.special

    @property
    def bos_token_id(self) -> int | None:
        index: int | None = self.transformers.bos_token_id
        return index

    @property
    def chat_template(self) -> str | None:
        """The Jinja source, None if the model has none."""
        template = self.transformers.chat_template
        return template.get("default") if isinstance(template, dict) else template

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``: nothing added in front or behind; the text of a special token becomes that token."""
        try:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        except TypeError:
            if not isinstance(text, str):
                raise UsageError(f"expected text, got {type(text).__name__}") from None
            half = next(i for i, character in enumerate(text) if 0xD800 <= ord(character) < 0xE000)
            raise UsageError(f"character {half} of the text is half of a surrogate pair: not valid Unicode") from None

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``: the bytes of the tokens in a row, read as UTF-8, with U+FFFD for what is not valid UTF-8.

        Ids that the vocabulary lacks (padding rows of a model's table) stand for nothing.
        """
        if self._pieces.exact:
            return self._pieces.text(ids, skip_special_tokens)
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for in running text, special tokens as they are spelled; empty for an unknown id."""
        return self._pieces.bytes_of(token_id)

    @property
    def pieces(self) -> Pieces:
        """Each token's bytes, for putting text together token by token."""
        return self._pieces

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation, in the model's own format.

        Args:
            messages: each with a ``role`` (one of `ROLES`) and a text ``content``.
            add_generation_prompt: whether the ids end where the assistant's answer begins.

        Raises:
            UsageError: no chat template, or messages that are malformed or that the template refuses.
        """
        if self.chat_template is None:
            raise UsageError("this model has no chat template: send a plain prompt to `generate` instead")
        _check(messages)
        from jinja2 import TemplateError

        try:
            text = self.transformers.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise UsageError(f"the model's chat template refuses these messages: {error}") from error
        return self.encode(str(text))


def tokenizer_beside(source: Path) -> Tokenizer | None:
    """The tokenizer of a model's folder or .gguf file; None for one that has none."""
    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
    if source.is_file():
        there = "tokenizer.ggml.model" in GGUFFile(source).metadata
    else:
        there = any((source / name).exists() for name in files)
    return Tokenizer.from_source(source) if there else None


def _check(messages: Sequence[Mapping[str, Any]]) -> None:
    if isinstance(messages, (str, Mapping)) or not messages:
        raise UsageError('messages must be a non-empty list of {"role": …, "content": …}')
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise UsageError(f"message {index} must have a role and a content; got {message!r}")
        if message["role"] not in ROLES:
            raise UsageError(f"message {index}: role {message['role']!r} is not known; choose from {', '.join(ROLES)}")
        if not isinstance(message["content"], str):
            kind = type(message["content"]).__name__
            raise UsageError(f"message {index}: content must be text, not {kind}")


def _from_gguf(path: Path) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    from workbench.text.gguf_tokenizer import build_backend, special_token

    metadata = GGUFFile(path).metadata
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    backend = build_backend(metadata, path)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        **{ours: special_token(metadata, theirs) for ours, theirs in names.items()},
    )
    fast.chat_template = metadata.get("tokenizer.chat_template")
    return Tokenizer(fast, eos_token_ids(metadata))


def _from_folder(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # tokenizer.json is the whole truth; only without it must a class be found that can build one.
    loader = PreTrainedTokenizerFast if (path / "tokenizer.json").is_file() else AutoTokenizer
    try:
        fast = loader.from_pretrained(str(path), local_files_only=True, clean_up_tokenization_spaces=False)
    except Exception as error:  # transformers raises whatever the first failing reader raised
        raise WorkbenchError(f"the tokenizer in {path} cannot be loaded: {error}") from error
    if not hasattr(fast, "backend_tokenizer"):
        raise UsageError(f"the tokenizer in {path} has no tokenizer.json; convert it with transformers first")
    return Tokenizer(fast, _eos_of_folder(path, fast.eos_token_id))


def _eos_of_folder(path: Path, tokenizers_own: int | None) -> tuple[int, ...]:
    """What ends a text, from the first that says so: generation_config.json, config.json, the tokenizer."""
    for name in ("generation_config.json", "config.json"):
        file = path / name
        if not file.is_file():
            continue
        if (given := read_json_object(file).get("eos_token_id")) is not None:
            found = as_token_ids(given)
            if found is None:
                raise WorkbenchError(f"{file}: eos_token_id={shown(given)} must be a token id or a list of token ids")
            return found
    return () if tokenizers_own is None else (tokenizers_own,)
