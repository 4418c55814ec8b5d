"""Errors of quantized matrices as tables and lines: by algorithm, and by the size of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from workbench.errors import UsageError
from workbench.lab.quantized_layers import Judged, Reader, judged
from workbench.lab.table import Cell, Table
from workbench.quant.args import QuantArgs

Row = list[Cell | str | int]
GROUPS = {"a row": -1, "192": 192, "128": 128, "64": 64, "32": 32}


def error_table(errors: Mapping[tuple[int, str], Mapping[str, Judged]]) -> Table:
    """One row a matrix, one column for each (bits, algorithm)."""
    names = next(iter(errors.values()))
    rows: list[Row] = [[name, *(f"{100 * found[name].error:.2f}" for found in errors.values())] for name in names]
    head = ["% of the output's squares", *(f"{how}, {bits} bits" for bits, how in errors)]
    return Table(head, rows, "against weights that were Q4_1, made floats; on a text that was not calibrated with")


def awq_table(found: Mapping[str, Judged]) -> Table:
    """What AWQ did to each matrix."""
    rows: list[Row] = [
        [name, "not scaled" if one.power is None else f"{one.power:g}", f"{one.cut:.0%}"] for name, one in found.items()
    ]
    return Table(["matrix", "scale: mean |x| to the power", "groups whose range was cut"], rows)


def group_table(readers: Sequence[Reader], matrix: str, args: QuantArgs) -> Table:
    """A matrix rounded to nearest in groups of each size; a size that does not fit is refused by name."""
    rows: list[Row] = []
    for told, size in GROUPS.items():
        try:
            bits, error = _of_group(readers, matrix, args.with_group(size))
            rows.append([told, f"{bits:.2f}", f"{error:.2f}"])
        except UsageError as refused:
            rows.append([told, "refused", str(refused).partition(";")[0]])
    kind = "symmetric" if args.symmetric else "with zero points"
    return Table(["group", "bits a weight", "output error %"], rows, f"{matrix}, {args.bits} bits, {kind}, RTN")


def group_lines(readers: Sequence[Reader], matrix: str, args: QuantArgs) -> dict[str, dict[float, float]]:
    """{symmetric or not: {bits of a weight: output error in %}}, from the largest group to the smallest."""
    lines = {}
    for name, symmetric in (("with zero points", False), ("symmetric", True)):
        one = replace(args, symmetric=symmetric)
        lines[name] = dict(_of_group(readers, matrix, one.with_group(size)) for size in (-1, 192, 64, 32))
    return lines


def _of_group(readers: Sequence[Reader], matrix: str, args: QuantArgs) -> tuple[float, float]:
    reader = next((one for one in readers if matrix in one.weights), None)
    if reader is None:
        raise UsageError(
            f"matrix {matrix!r} is not here; choose from {', '.join(n for r in readers for n in r.weights)}"
        )
    alone = reader._replace(weights={matrix: reader.weights[matrix]})
    error = judged(alone, "rtn", args)[matrix].error
    return args.bits_per_number(reader.weights[matrix].shape, matrix), 100 * error
