"""The canary: a kernel so small that its answer is known, run before anything else trusts Triton on this machine.

It adds two vectors whose length is no multiple of the block, so that loads, arithmetic and the mask of the last block
are all seen: x[i] + 2·x[i] = 3·i for i < n, and nothing is written from n on. Everything is exact in float32.

Run alone (`python -m kernels.triton.canary cuda`) it prints one JSON object {ok, got, expected, mode} and exits 0 or 1.
With `cpu` the interpreter must have been chosen by TRITON_INTERPRET=1 before Triton is imported, hence a fresh process.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from kernels.triton.variants import Variant

NUM_VALUES = 1000
BLOCK = 256
UNTOUCHED = -1.0


@triton.jit
def _add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside)
    y = tl.load(y_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, x + y, mask=inside)


def variants() -> list[Variant]:
    """The one launch of `run`; 1,000 is no multiple of 16."""
    # Here, so that the kernel needs nothing but Triton and torch when it is asked whether those work.
    from kernels.triton.variants import Variant

    pointers = dict.fromkeys(("x_ptr", "y_ptr", "out_ptr"), "*fp32")
    return [Variant(name="add", kernel=_add, signature={**pointers, "n": "i32"}, constexprs={"BLOCK": BLOCK})]


def run(device: str) -> dict[str, object]:
    """Runs the kernel on ``device`` (``cuda``, or ``cpu`` under the interpreter) and compares every value."""
    room = triton.cdiv(NUM_VALUES, BLOCK) * BLOCK
    x = torch.arange(room, dtype=torch.float32, device=device)
    out = torch.full((room,), UNTOUCHED, device=device)
    _add[(triton.cdiv(NUM_VALUES, BLOCK),)](x, 2 * x, out, NUM_VALUES, BLOCK=BLOCK)
    expected = torch.arange(room, dtype=torch.float32) * 3
    expected[NUM_VALUES:] = UNTOUCHED
    got = out.cpu()
    wrong = (got != expected).nonzero().flatten().tolist()
    at = wrong[0] if wrong else NUM_VALUES - 1
    return {
        "ok": not wrong,
        "index": at,
        "got": got[at].item(),
        "expected": expected[at].item(),
        "mode": "compiled" if isinstance(_add, triton.JITFunction) else "interpreted",
    }


if __name__ == "__main__":
    result = run(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    print(json.dumps(result))
    sys.exit(0 if result["ok"] else 1)
