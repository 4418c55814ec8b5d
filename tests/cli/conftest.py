"""A tiny model with the default model's tokenizer and chat template: commands run in seconds and on real text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.tiny import make_tiny
from workbench.model import store
from workbench.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-chat")
    make_tiny("smollm2", path, vocab_size=49152)
    Tokenizer.from_source(store.locate("smollm2-135m")).transformers.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def tiny_without_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-ids")
    make_tiny("smollm2", path)
    return path
