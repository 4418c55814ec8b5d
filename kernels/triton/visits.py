"""Which blocks of keys an interpreted FlashAttention kernel walks over, in the order in which it does.

    with visiting() as visits:
        flash_attention(q, k, v, ..., causal=True)
    visits[0].tile, visits[0].start, visits[0].masked

Written down by the kernel's own loops as they run, not worked out beside them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from triton.runtime.interpreter import interpreter_builder

from kernels.triton import attention_walk
from kernels.triton.interpreter import interpreting


class Visit(NamedTuple):
    """One tile of queries meets one block of keys.

    program, kv_head: the program, on the grid's x and y. first, last: positions of the tile's first and last query
    among the keys of their sequence. start, stop: the block's keys, those past the last key included. masked: whether
    the block went through the loop with masks.
    """

    program: int
    kv_head: int
    first: int
    last: int
    start: int
    stop: int
    masked: bool


@contextmanager
def visiting() -> Iterator[list[Visit]]:
    """Within it every block that some tile visits adds its `Visit`. Raises RuntimeError where kernels are compiled."""
    if not interpreting():
        raise RuntimeError("kernels are compiled in this process; start Python with TRITON_INTERPRET=1 to watch them")
    visits: list[Visit] = []
    walk = attention_walk.walk
    signature = inspect.signature(walk.fn)

    def watched(*args: Any) -> Any:
        given = signature.bind(*args).arguments
        own, k_len, width = given["own"].handle.data, _number(given["k_len"]), _number(given["BLOCK_N"])
        program, kv_head, _ = interpreter_builder.grid_idx
        for start in range(_number(given["begin"]), _number(given["end"]), width):
            # Rows past the last query are there for the shape only.
            first, last = int(own[0]), min(int(own[-1]), k_len - 1)
            visits.append(Visit(program, kv_head, first, last, start, start + width, bool(given["MASKED"])))
        return walk(*args)

    attention_walk.walk = watched
    try:
        yield visits
    finally:
        attention_walk.walk = walk


def _number(value: Any) -> int:
    """Of an interpreted scalar, or of a constant."""
    return int(value.handle.data.item()) if hasattr(value, "handle") else int(getattr(value, "value", value))
