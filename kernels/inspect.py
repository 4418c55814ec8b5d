"""What the compiler made of every Triton kernel, without a GPU:

    python -m kernels.inspect                     every configuration that is launched, on three chips
    python -m kernels.inspect matmul --arch sm_90 some of them: a module, a full name, or a pattern such as "*d128*"
    python -m kernels.inspect --check             exit 1 for spills, a wanted instruction that is missing, more shared
                                                  memory than the chip has, or figures that are not the table's
    python -m kernels.inspect --update            writes the table of this Triton version
    python -m kernels.inspect matmul.d128 --sass --arch sm_90     the machine code

Only what changed is compiled (`kernels.compile.cache`). Works on Triton 3.6 to 3.9. Where TRITON_INTERPRET is set it
starts itself again without it; `inspect` and `sass` do so always, so a notebook may call them.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernels.compile import farm, find, rules, show, table
from kernels.compile.build import CannotCompile, build, disassemble, ptxas_version
from kernels.compile.chips import CHIPS, occupancy
from kernels.compile.made import Made
from kernels.triton.variants import ARCHS

UPDATE = "python -m kernels.inspect --update"
LEGEND = """columns:
  warps       of a program, 32 threads each
  regs        registers of a thread, at most 255
  local       bytes of a thread that are spilled to memory
  shared KiB  shared memory of a program
  blocks/SM   programs that an SM, one processor of the chip, holds at a time
  occupancy   share of its warps that are held then, and what allows no more
  matrix      matrix instructions, copies: those that copy while threads go on; counted in the code, not as run
  loads       of memory: 128:2 = two instructions that read 128 bits a thread
"""


def inspect(
    names: Sequence[str] = (), archs: Sequence[str] = ARCHS, sources: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The figures of these configurations, from a process that compiles. ``sources``: modules or files that list
    variants, in place of `kernels.triton`. Raises RuntimeError with what that process said where it failed."""
    found = json.loads(_elsewhere([*names, "--json", *_options(archs, sources)]))
    records: list[dict[str, Any]] = found["records"]
    return records


def sass(name: str, arch: str, sources: Sequence[str] | None = None) -> str:
    """The machine code of one configuration. Raises RuntimeError as `inspect` does."""
    return _elsewhere([name, "--sass", *_options([arch], sources)])


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 for faults under ``--check``, 2 for wrong usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "TRITON_INTERPRET" in os.environ:
        return subprocess.run(_command(arguments), env=_environment()).returncode
    options = _parse(arguments)
    try:
        found = find.find(options.module)
        jobs = _choose(found, options.names, options.arch)
        if options.sass:
            return _print_sass(jobs)
        report = _report(found, jobs, options)
    except CannotCompile as error:
        print(f"inspect: {error}", file=sys.stderr)
        return 1
    except (ValueError, ImportError) as error:
        print(f"inspect: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        _print(report, checked=options.check)
    return 1 if options.check and report["faults"] else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kernels.inspect",
        description="What the compiler made of every Triton kernel, without a GPU.",
        epilog=LEGEND,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="modules, full names or patterns; default: all")
    parser.add_argument("--arch", nargs="+", choices=ARCHS, default=ARCHS, help="chips; default: all of %(choices)s")
    parser.add_argument("--check", action="store_true", help="exit 1 for any fault")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--update", action="store_true", help="write the table of this Triton version")
    parser.add_argument("--sass", action="store_true", help="print the machine code and nothing else")
    parser.add_argument("--module", action="append", help="a module or file that lists variants, in place of all")
    parser.add_argument("--table", type=Path, help="another table; with --module there is none unless named")
    parser.add_argument("--workers", type=int, help="compile so many at a time; default: one a processor")
    options = parser.parse_args(arguments)
    if options.workers is not None and options.workers < 1:
        parser.error(f"--workers {options.workers}: it must be at least 1")
    if options.sass and (options.json or options.check or options.update):
        parser.error("--sass prints machine code and nothing else: leave --json, --check and --update out")
    if options.update and options.module and not options.table:
        parser.error("--update with --module needs --table: the tables here are of kernels.triton")
    return options


def _choose(found: Sequence[find.Found], names: Sequence[str], archs: Sequence[str]) -> list[farm.Job]:
    """Raises ValueError for a name that fits nothing."""
    chosen = list(found)
    if names:
        fits = {name: [one for one in found if _fits(one.name, name)] for name in names}
        if unknown := [name for name, ones in fits.items() if not ones]:
            known = ", ".join(sorted({one.name.split(".")[0] for one in found}))
            raise ValueError(f"nothing is called {', '.join(unknown)}; there are {known}, and --json lists full names")
        chosen = [one for one in found if any(one in ones for ones in fits.values())]
    return [farm.Job(one, arch) for one in chosen for arch in archs if arch in one.variant.runs_on()]


def _fits(full: str, name: str) -> bool:
    return full == name or full.startswith(f"{name}.") or fnmatch.fnmatchcase(full, name)


def _report(found: Sequence[find.Found], jobs: Sequence[farm.Job], options: argparse.Namespace) -> dict[str, Any]:
    import triton

    version = triton.__version__
    path = options.table or (None if options.module else table.path_for(version))
    outcomes = farm.measure(jobs, options.workers)
    agreed = table.load(path) if path is not None and path.exists() else {}
    launched = {(one.name, arch) for one in found for arch in one.variant.runs_on()}
    if options.update and path is not None:
        made = [(one.job.found.name, one.job.arch, one.made) for one in outcomes if one.made is not None]
        whole = not options.names
        agreed = table.updated(agreed, made, launched if whole else None)
        table.save(path, agreed)
    compared = path is not None and path.exists()
    records = [_record(one, agreed.get(one.job.found.name, {}).get(one.job.arch), compared) for one in outcomes]
    faults = [f"{one['name']} {one['arch']}: {fault}" for one in records for fault in one["faults"]]
    if path is not None and not compared:
        faults.append(f"there is no table for Triton {version} (there are {', '.join(table.versions())}): {UPDATE}")
    if not options.names:
        stale = [(name, arch) for name, rows in agreed.items() for arch in rows if (name, arch) not in launched]
        faults += [f"{name} {arch}: in the table, but no longer launched: {UPDATE}" for name, arch in stale]
        if not options.module:
            faults += [f"{kernel}: a kernel that no variants() lists" for kernel in find.unlisted(found)]
    return {
        "triton": version,
        "ptxas": {arch: ptxas_version(arch) for arch in dict.fromkeys(job.arch for job in jobs)},
        "cached": sum(one.cached for one in outcomes),
        "compiled": sum(not one.cached for one in outcomes),
        "processor_seconds": round(sum(one.seconds for one in outcomes), 1),
        "records": records,
        "faults": faults,
    }


def _record(outcome: farm.Outcome, row: table.Row | None, compared: bool) -> dict[str, Any]:
    job, made = outcome.job, outcome.made
    where = {"name": job.found.name, "arch": job.arch}
    if made is None:
        return {**where, "error": outcome.error, "faults": [f"does not compile: {outcome.error}"]}
    faults = rules.broken(job.found.variant, job.arch, made, row)
    if compared and row is None:
        faults.append(f"not in the table: {UPDATE}")
    elif compared and row is not None:
        faults += [f"{difference} (the table; if meant: {UPDATE})" for difference in table.differences(row, made)]
    return {**where, **made.brief(), "occupancy": asdict(_held(made, job.arch)), "faults": faults}


def _held(made: Made, arch: str) -> Any:
    return occupancy(
        CHIPS[arch],
        registers=made.registers,
        warps=made.warps,
        shared=made.shared,
        tensor_columns=made.tensor_columns,
    )


def _print(report: dict[str, Any], *, checked: bool) -> None:
    ptxas = ", ".join(f"{version} for {arch}" for arch, version in report["ptxas"].items())
    print(f"Triton {report['triton']}, ptxas {ptxas}")
    print(show.text(report["records"]))
    print(
        f"{len(report['records'])} kernel{'s' if len(report['records']) != 1 else ''}: {report['compiled']} compiled "
        f"({report['processor_seconds']:.0f} s of processor time), {report['cached']} as kept"
    )
    stream = sys.stderr if checked else sys.stdout
    for fault in report["faults"]:
        print(f"fault: {fault}", file=stream)


def _print_sass(jobs: Sequence[farm.Job]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TRITON_CACHE_DIR"] = scratch
        for job in jobs:
            print(f"// {job.found.name} {job.arch}")
            print(disassemble(build(job.found.variant, job.arch).cubin)[1])
    return 0


def _options(archs: Sequence[str], sources: Sequence[str] | None) -> list[str]:
    return ["--arch", *archs, *(word for source in sources or () for word in ("--module", source))]


def _elsewhere(arguments: Sequence[str]) -> str:
    done = subprocess.run(_command(arguments), env=_environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"kernels.inspect ended with {done.returncode}")
    return done.stdout


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "kernels.inspect", *arguments]


def _environment() -> dict[str, str]:
    """Without the interpreter, and with this tree's `kernels` before any other."""
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(path for path in (root, os.environ.get("PYTHONPATH")) if path)
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"PYTHONPATH": paths}


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away (`| head`): no fault of ours, but Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
