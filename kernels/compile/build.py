"""Compiles one variant for one chip, without a GPU and without a driver. The same on Triton 3.6 to 3.9.

What counts besides the kernel itself:
- An argument's divisibility by 16, which Triton finds out at launch, must be stated. Without it no load is vectorised
  and nothing is copied asynchronously; registers and code are then those of another kernel.
- Which ptxas is used differs: Triton 3.6 brings one for Blackwell and takes it from sm_100 on, 3.9 from sm_90 on. So
  figures for sm_90 differ between the two, and the tables are kept for each version.
- The names of the code have an "a" from sm_90 on (sm_90a): wgmma and TMA are in no other.

This must run where TRITON_INTERPRET is not set: with it ``@triton.jit`` gives functions that cannot be compiled.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.triton.variants import Variant

# Sources that decide what is written down of a kernel; a change of them makes results kept earlier stale.
_OWN = ("build.py", "sass.py", "made.py")


class CannotCompile(RuntimeError):
    """The compiler refused; the message is its own, shortened to what names the cause."""


@dataclass(frozen=True)
class Built:
    """Machine code of one kernel, and what only the compiler can say of it.

    shared: bytes of shared memory of a block. warps: of a block, those that specialisation added included.
    tensor_columns: of the 512 columns of tensor memory (sm_100).
    """

    ptx: str
    cubin: bytes
    shared: int
    warps: int
    tensor_columns: int


def build(variant: Variant, arch: str) -> Built:
    """Raises CannotCompile with the compiler's reason."""
    from triton import compile as compile_source

    try:
        kernel = compile_source(_source(variant), target=_target(arch), options=_options(variant))
    except Exception as error:  # the front end, MLIR and ptxas each have their own
        raise CannotCompile(_reason(error)) from error
    return Built(
        kernel.asm["ptx"],
        kernel.asm["cubin"],
        kernel.metadata.shared,
        kernel.metadata.num_warps,
        getattr(kernel.metadata, "tmem_size", None) or 0,
    )


def key(variant: Variant, arch: str) -> str:
    """Two variants have the same key exactly if the same is compiled by the same compiler: a hash of the kernel's
    source and all it calls, its types and values, the chip, options, Triton's and ptxas's versions and the variables of
    the environment that Triton heeds. A kernel that moves to another line has another key: its line is in it."""
    import triton
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.compiler.compiler import make_backend

    backend = make_backend(_target(arch))
    parts = [
        _own_digest(),
        triton.__version__,
        _source(variant).hash(),
        # Triton leaves out names: "i32 for n, constexpr for m" would be the same as the other way round.
        str(sorted(variant.types().items())),
        backend.hash(),
        backend.parse_options(_options(variant)).hash(),
        str(sorted(get_cache_invalidating_env_vars().items())),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def disassemble(cubin: bytes) -> tuple[str, str]:
    """(resource usage as cuobjdump prints it, SASS as nvdisasm prints it), by the tools that Triton brings."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        # Without the analysis of data flow (-ndf), of which nothing is used here, it takes half the time.
        return _run("cuobjdump", "-res-usage", str(path)), _run("nvdisasm", "-c", "-ndf", str(path))


def ptxas_version(arch: str) -> str:
    """Of the assembler used for this chip, "12.9"; "?" if it does not say."""
    from triton.compiler.compiler import make_backend

    words = make_backend(_target(arch)).hash().replace(",", " ").split()
    return words[words.index("release") + 1] if "release" in words else "?"


def _source(variant: Variant) -> Any:
    from triton.compiler import ASTSource

    attributes = {(place,): [["tt.divisibility", 16]] for place in variant.divisible()}
    return ASTSource(
        fn=variant.kernel, signature=variant.types(), constexprs=dict(variant.constexprs), attrs=attributes
    )


def _target(arch: str) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def _options(variant: Variant) -> dict[str, Any]:
    # Fusing multiply and add is what a launch does up to 3.9; said aloud, as 3.9 warns that the default will change.
    return {
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "enable_fp_fusion": True,
        **variant.options,
    }


def _reason(error: BaseException) -> str:
    """What the innermost cause says: the front end wraps it in the source around each call, MLIR in whole modules."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines[-1:]
    return f"{type(error).__name__}: {' | '.join(telling[:2])[:400]}"


def _run(tool: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    done = subprocess.run([str(path), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotCompile(f"{tool} failed: {done.stderr.strip()[:400]}")
    return done.stdout


@functools.cache
def _own_digest() -> str:
    digest = hashlib.sha256()
    for name in _OWN:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()
