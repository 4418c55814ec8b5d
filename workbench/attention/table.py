"""The attention backends as data: what each asks for, and who is preferred where.

Nothing here decides; `workbench.attention.choose` reads it, for the engine and for ``workbench info attention`` alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.triton.attention_call import LEAST_CAPABILITY, MAX_HEAD_DIM

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")
ON_CPUS = "CPUs"
NEVER_RUN = "never yet run on hardware"
UNTRIED = f"its calls, against a stand-in that computes with torch; {NEVER_RUN}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend, and the limits that can be told without asking the machine."""

    name: str
    what: str
    tested: str
    """What it was tested on."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ()
    """Of queries; empty: any."""
    cache_alike: bool = False
    """Whether the cache must have the queries' type: its pages are read as they are."""
    least_capability: tuple[int, int] = (0, 0)
    majors: tuple[int, ...] = ()
    """The only major compute capabilities, such as 9 for 9.x; empty: all from the least on."""
    head_dims: tuple[int, ...] = ()
    """The only ones; empty: all that the next two allow."""
    head_dim_multiple: int = 1
    most_head_dim: int | None = None
    page_multiple: int = 1
    """What ``block_size`` must be a multiple of."""
    page_size: int | None = None
    """The only ``block_size``; None: all of the multiple."""
    latent: tuple[int, int] | None = None
    """(rank, rotated) widths of the only latent attention it computes; it computes no other attention then."""
    latent_too: bool = False
    """Whether it computes latent attention of any widths beside the other."""
    batch_invariant: bool = False
    """Whether a request's bits are the same whatever else is in the batch."""
    module: str = ""
    """What must be importable, and …"""
    install: str = ""
    """… how to get it."""

    @property
    def untried(self) -> bool:
        """Whether it never ran on hardware: then only its name takes it, ``auto`` does not."""
        return self.tested == UNTRIED


CANDIDATES = {
    one.name: one
    for one in (
        Candidate(  # its other limits: `workbench.attention.cpu.why_not`
            "cpu",
            "our C++ kernel: keys and values are read where they lie",
            ON_CPUS,
            devices=("cpu",),
            batch_invariant=True,
        ),
        Candidate(
            "triton",
            "our Triton kernel",
            "Triton's interpreter, and machine code inspected for three chips",
            dtypes=FLOATS,
            least_capability=(LEAST_CAPABILITY // 10, LEAST_CAPABILITY % 10),
            most_head_dim=MAX_HEAD_DIM,
            latent_too=True,
            batch_invariant=True,
            module="triton",
            install="pip install triton (Linux)",
        ),
        Candidate("sdpa", "PyTorch's scaled_dot_product_attention over gathered keys and values", ON_CPUS),
        Candidate("flex", "PyTorch's FlexAttention over gathered keys and values: a mask written in Python", ON_CPUS),
        Candidate(
            "torch_native",
            "the definition in plain PyTorch, request by request",
            ON_CPUS,
            latent_too=True,
            batch_invariant=True,
        ),
        Candidate(
            "flashinfer",
            "FlashInfer: paged attention planned once a step (fa2 or fa3 inside)",
            UNTRIED,
            devices=("cuda",),
            dtypes=HALVES,
            cache_alike=True,
            least_capability=(7, 5),
            head_dims=(64, 128, 256),
            module="flashinfer",
            install="pip install flashinfer-python",
        ),
        Candidate(
            "flash_attn",
            "FlashAttention-2 over pages",
            UNTRIED,
            devices=("cuda",),
            dtypes=HALVES,
            cache_alike=True,
            least_capability=(8, 0),
            head_dim_multiple=8,
            most_head_dim=256,
            page_multiple=256,
            module="flash_attn",
            install="pip install flash-attn --no-build-isolation",
        ),
        Candidate(
            "fa3",
            "FlashAttention-3, written for Hopper, over pages of any size",
            UNTRIED,
            devices=("cuda",),
            dtypes=HALVES,
            cache_alike=True,
            majors=(9,),
            head_dim_multiple=8,
            most_head_dim=256,
            module="flash_attn_interface",
            install="git clone https://github.com/Dao-AILab/flash-attention, then python setup.py install in hopper/",
        ),
        Candidate(
            "flashmla",
            "FlashMLA: decoding over pages of latents (DeepSeek's widths)",
            UNTRIED,
            devices=("cuda",),
            dtypes=HALVES,
            cache_alike=True,
            majors=(9,),
            page_size=64,
            latent=(512, 64),
            module="flash_mla",
            install="git clone --recursive https://github.com/deepseek-ai/FlashMLA, then pip install . in it",
        ),
        Candidate(
            "xformers",
            "xFormers' memory-efficient attention over gathered keys and values",
            UNTRIED,
            devices=("cuda",),
            dtypes=FLOATS,
            least_capability=(7, 0),
            head_dim_multiple=8,
            most_head_dim=256,
            module="xformers",
            install="pip install xformers",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Order:
    """Who comes first on an architecture. What is left out ``auto`` never takes there."""

    names: tuple[str, ...]
    latent: tuple[str, ...]
    """For multi-head latent attention."""
    because: str
    latent_because: str


WHERE_THEY_LIE = "our Triton kernel reads latents where they lie, once for all heads of a program; torch gathers them"
ONLY_TORCH = "of our backends only torch's definition computes latent attention here"
ORDERS = {
    "CPU": Order(
        ("cpu", "sdpa", "torch_native"),
        ("torch_native",),
        "a kernel that gathers nothing reads each key and value once",
        ONLY_TORCH,
    ),
    "Hopper": Order(
        ("fa3", "flashinfer", "triton", "sdpa", "torch_native"),
        ("flashmla", "triton", "torch_native"),
        "FlashAttention-3 was written for Hopper's own instructions and overlaps products with softmax",
        f"FlashMLA was written for Hopper and for DeepSeek's widths; {WHERE_THEY_LIE}",
    ),
    "Blackwell": Order(
        ("flashinfer", "triton", "sdpa", "torch_native"),
        ("triton", "torch_native"),
        "FlashInfer brings kernels for Blackwell's matrix units; FlashAttention-3 is for Hopper only",
        WHERE_THEY_LIE,
    ),
    "consumer Blackwell": Order(
        ("flashinfer", "triton", "sdpa", "torch_native"),
        ("triton", "torch_native"),
        "FlashInfer takes pages of any size; kernels for Hopper or for Blackwell in data centres do not run on it",
        WHERE_THEY_LIE,
    ),
    "Ada": Order(
        ("flashinfer", "flash_attn", "triton", "sdpa", "torch_native"),
        ("triton", "torch_native"),
        "FlashInfer takes pages of any size; FlashAttention-2 wants pages of 256 tokens",
        WHERE_THEY_LIE,
    ),
    "Ampere": Order(
        ("flashinfer", "flash_attn", "triton", "sdpa", "torch_native"),
        ("triton", "torch_native"),
        "FlashInfer takes pages of any size; FlashAttention-2 wants pages of 256 tokens",
        WHERE_THEY_LIE,
    ),
    "an older GPU": Order(
        ("sdpa", "torch_native"),
        ("torch_native",),
        "there is no bfloat16 and there are no asynchronous copies",
        ONLY_TORCH,
    ),
}


def architecture(device: str, capability: tuple[int, int] | None) -> str:
    """The row of `ORDERS` for a device. A GPU newer than all of them counts as the newest; Blackwell's consumer cards
    (12.x) can do less than those of data centres (10.x)."""
    if device == "cpu":
        return "CPU"
    if capability is None or capability < (8, 0):
        return "an older GPU"
    if capability >= (10, 0):
        return "consumer Blackwell" if capability[0] == 12 else "Blackwell"
    return "Hopper" if capability >= (9, 0) else "Ada" if capability >= (8, 9) else "Ampere"
