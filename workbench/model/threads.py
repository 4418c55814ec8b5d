"""How many threads torch may use for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """For reading, decoding and laying out weights: many short operations, and handing each to several threads costs
    more than it saves, far more on a busy machine (measured on two cores, SmolLM2-135M: decoding 1 s with one thread,
    2 to 8 s with two while others computed)."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
