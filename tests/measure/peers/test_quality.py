"""Equal tokens, and the text on which distributions are compared."""

from __future__ import annotations

import numpy as np

from workbench.measure.peers.quality import equal_tokens, equal_top
from workbench.model import store
from workbench.text.default_text import DEFAULT_TEXT
from workbench.text.tokenizer import Tokenizer


def test_shares():
    one, other = np.array([[1, 2], [4, 3], [0, 1], [0, 1]]), np.array([[1, 2], [3, 4], [0, 1], [0, 1]])
    assert equal_top(one, other) == 0.75
    assert equal_tokens([1, 2, 3, 4], [1, 0, 3, 0]) == 0.5


def test_the_text_has_at_least_256_tokens():
    ids = Tokenizer.from_source(store.locate("smollm2-135m")).encode(DEFAULT_TEXT)
    assert 256 <= len(ids) <= 600
