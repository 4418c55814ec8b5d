"""Bytes of attention on paper are those that interpreted kernels move; limits of what may be asked."""

from __future__ import annotations

import pytest

from kernels.triton.interpreter import interpreting
from workbench.errors import UsageError
from workbench.lab.attention_rungs import SMALL, attention_inputs, rung_traffic
from workbench.measure.attention_bytes import Attention


@pytest.mark.skipif(not interpreting(), reason="bytes are counted in the interpreter")
@pytest.mark.parametrize(("tokens", "heads", "kv_heads"), [(48, 2, 1), (32, 2, 2)])
def test_paper_and_kernel_agree(tokens: int, heads: int, kv_heads: int) -> None:
    counted = Attention(tokens, tokens, heads, kv_heads, 16, size=4)
    seen = rung_traffic(attention_inputs(tokens, heads, kv_heads))
    assert [(one.read, one.written) for one in seen] == [
        (one.read, one.written) for one in (*counted.naive(), counted.flash())
    ]
    q_bytes = tokens * heads * 16 * 4
    # Beyond keys and values a tile asks for its queries, and for where sequences begin.
    assert 0 <= seen[-1].asked - counted.asked(SMALL.block_m) - q_bytes < 400


def test_flops_count_what_is_seen() -> None:
    assert Attention(3, 3, 1, 1, 8).pairs == 6
    assert Attention(2, 5, 1, 1, 8).pairs == 4 + 5
    assert Attention(2, 5, 1, 1, 8, causal=False).pairs == 10
    assert Attention(1, 100, 4, 2, 8).flops == 4 * 100 * 4 * 8


def test_totals() -> None:
    one = Attention(4, 6, 2, 1, 8, size=2)
    assert one.score_bytes == 4 * 6 * 2 * 4
    assert one.flash_bytes() == 2 * 4 * 2 * 8 * 2 + 2 * 6 * 8 * 2 + 4 * 2 * 4
    assert one.naive_bytes() == one.flash_bytes() + 4 * one.score_bytes


def test_what_tiles_ask_for() -> None:
    one = Attention(64, 64, 2, 1, 16, size=2)
    assert one.asked(128) == 64 * 2 * 16 * 2, "one tile asks once"
    assert one.asked(64) == (32 + 64) * 2 * 16 * 2
    assert Attention(64, 64, 2, 1, 16, causal=False).asked(64) == 2 * 64 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [({"queries": 0}, "queries=0"), ({"num_kv_heads": 3}, "must divide"), ({"queries": 9}, "cannot be more")],
)
def test_what_cannot_be_is_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Attention(**{"queries": 4, "keys": 8, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, **change})
