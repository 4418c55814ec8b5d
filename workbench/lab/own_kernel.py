"""What the compiler makes of a Triton kernel that a reader has written, for a GPU that need not be here.

Compiling happens in a process of its own, where nothing is interpreted, as `kernels.inspect` does for the kernels of
the engine; its figures for those are agreed in tables and need no compiling.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kernels
from kernels.compile import table
from kernels.compile.chips import CHIPS, occupancy
from kernels.compile.made import Made
from workbench.errors import UsageError, WorkbenchError
from workbench.lab.table import Table

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
SECONDS = 120
# The package's own __init__ loads torch, which takes longer than compiling; nothing here needs it.
_CHILD = """
import importlib.util, json, sys, types
root, file, arch = sys.argv[1:]
kernels = sys.modules["kernels"] = types.ModuleType("kernels")
kernels.__path__ = [root]
from dataclasses import asdict
from kernels.compile.build import CannotCompile, build, disassemble
from kernels.compile.made import figures
from kernels.triton.variants import Variant
spec = importlib.util.spec_from_file_location("own", file)
own = sys.modules["own"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own)
wanted = json.load(sys.stdin)
try:
    built = build(Variant(kernel=getattr(own, wanted["name"]), **wanted), arch)
    resources, code = disassemble(built.cubin)
except CannotCompile as error:
    sys.exit(str(error))
made = figures(resources, code, built.warps, built.shared, built.tensor_columns)
json.dump({"made": made.brief(), "sass": code}, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class OwnKernel:
    """A kernel's figures and its machine code, SASS, for one chip."""

    name: str
    arch: str
    made: Made
    sass: str

    def instructions(self, *names: str) -> list[str]:
        """Lines of the machine code in their order, without addresses: those whose instruction begins with one of these
        (``LDG``, ``STG``, ``SHFL``); all of them if none is named."""
        lines = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", self.sass, re.MULTILINE)
        return [line for line in lines if not names or re.sub(r"^@!?\w+\s+", "", line).startswith(names)]


def compile_own(
    function: Callable[..., Any],
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    divisible_by_16: tuple[str, ...],
    num_warps: int = 4,
    arch: str = "sm_90",
) -> OwnKernel:
    """Compiles a plain function, or one under ``@triton.jit``; arguments as of `kernels.triton.variants.Variant`.

    The function's text is all that is compiled: it may name ``tl`` and its own arguments. Raises UsageError with the
    compiler's reason where it refuses the function, WorkbenchError where there is no compiler.
    """
    plain = getattr(function, "fn", function)
    source = textwrap.dedent(inspect.getsource(plain))
    wanted = {
        "name": plain.__name__,
        "signature": dict(signature),
        "constexprs": dict(constexprs),
        "divisible_by_16": divisible_by_16,
        "num_warps": num_warps,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "own.py")
        file.write_text(HEAD + source[source.index("def ") :], encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        # What Triton keeps of it lies in the folder too, and goes with it.
        environment["TRITON_CACHE_DIR"] = folder
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(Path(kernels.__file__).parent), str(file), arch],
            input=json.dumps(wanted), capture_output=True, text=True, env=environment, timeout=SECONDS,
        )  # fmt: skip
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        if "Traceback" in done.stderr:
            raise WorkbenchError(f"{plain.__name__} cannot be compiled here: {reason[0]}")
        raise UsageError(f"{plain.__name__} does not compile for {arch}: {reason[0]}")
    told = json.loads(done.stdout)
    return OwnKernel(plain.__name__, arch, Made.of(told["made"]), told["sass"])


def beside(own: OwnKernel, house: str) -> Table:
    """The figures of a reader's kernel and those agreed for one of the engine's, ``norm.bf16-residual-576``."""
    rows = [["yours", *_figures(own.made, own.arch)]]
    if (made := agreed(house, own.arch)) is not None:
        rows.append([house, *_figures(made, own.arch)])
    head = ["kernel", "warps", "registers a thread", "spilled", "loads", "stores", "of the SM's warps"]
    return Table(head, rows, f"compiled for {own.arch} ({CHIPS[own.arch].example}), run nowhere")


def agreed(name: str, arch: str) -> Made | None:
    """The table's figures of a configuration that the engine launches; None where this Triton version has no table."""
    import triton

    path = table.path_for(triton.__version__)
    row = table.load(path).get(name, {}).get(arch) if path.exists() else None
    fields = asdict(Made(0, 0, 0))
    return None if row is None else Made.of({key: value for key, value in row.items() if key in fields})


def _figures(made: Made, arch: str) -> list[str | int]:
    held = occupancy(CHIPS[arch], registers=made.registers, warps=made.warps, shared=made.shared)
    loads, stores = (
        ", ".join(f"{count} of {int(bits) // 8} bytes" for bits, count in moves.items()) or "none"
        for moves in (made.loads, made.stores)
    )
    spilled = f"{made.local_bytes} bytes" if made.uses_local() else "nothing"
    return [made.warps, made.registers, spilled, loads, stores, f"{held.share:.0%}"]
