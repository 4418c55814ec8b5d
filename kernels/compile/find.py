"""Which kernels there are and in which configurations they are launched.

A module of `kernels.triton` takes part when it has a function ``variants() -> list[Variant]`` at its top level. The
source is read for that before anything is imported. Of a file outside the package (a notebook's, a test's) the path may
be given instead. `unlisted` finds kernels that nobody lists: they would be launched without ever being inspected.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from kernels.triton.variants import Variant

FOLDER = Path(__file__).parents[1] / "triton"
PACKAGE = "kernels.triton"


@dataclass(frozen=True)
class Found:
    """A variant, where it comes from (a module's name or a file's path) and its full name, ``{module}.{variant}``."""

    source: str
    name: str
    variant: Variant


def sources() -> list[str]:
    """Modules of `kernels.triton` that list variants, by name."""
    return [module for module, tree in _modules() if any(_is_function(node, "variants") for node in tree.body)]


def find(wanted: Sequence[str] | None = None) -> list[Found]:
    """All variants of these sources, or of the package. Raises ValueError for two of the same name."""
    found: dict[str, Found] = {}
    for source in sources() if wanted is None else wanted:
        for one in of(source):
            if one.name in found:
                raise ValueError(f"{one.name} is listed by {found[one.name].source} and again by {source}")
            found[one.name] = one
    return list(found.values())


def of(source: str) -> list[Found]:
    """The variants that one source lists. Raises ValueError where it lists none."""
    module = _load(source)
    if not hasattr(module, "variants"):
        raise ValueError(f"{source} has no function variants()")
    stem = module.__name__.rsplit(".", 1)[-1]
    return [Found(source, f"{stem}.{variant.name}", variant) for variant in module.variants()]


def unlisted(found: Sequence[Found]) -> list[str]:
    """Kernels of the package that no variant names and no other kernel calls, as ``module.function``."""
    listed = {(one.variant.kernel.fn.__module__, one.variant.kernel.fn.__name__) for one in found}
    kernels: list[tuple[str, str]] = []
    called: set[str] = set()
    for module, tree in _modules():
        for function in filter(_is_kernel, tree.body):
            assert isinstance(function, ast.FunctionDef)
            kernels.append((module, function.name))
            called |= {name for name in _names(function) if name != function.name}
    return [f"{module}.{name}" for module, name in kernels if (module, name) not in listed and name not in called]


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(FOLDER.rglob("*.py")):
        parts = path.relative_to(FOLDER).with_suffix("").parts
        name = ".".join([PACKAGE, *(part for part in parts if part != "__init__")])
        yield name, ast.parse(path.read_text(encoding="utf-8"), str(path))


def _is_function(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _is_kernel(node: ast.stmt) -> bool:
    """Whether a top-level statement is a function under ``@triton.jit``, with or without options."""
    if not isinstance(node, ast.FunctionDef):
        return False
    plain = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    return any((one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")) == "jit" for one in plain)


def _names(function: ast.FunctionDef) -> Iterator[str]:
    """Everything the body refers to: a called function, and also one handed to ``tl.reduce``."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _load(source: str) -> ModuleType:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    path = Path(source).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ValueError(f"{source} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Known by its name before it runs, as an import would have it: Triton reads the kernel's source through this.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
