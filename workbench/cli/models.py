"""``workbench model list|fetch|info`` and ``workbench doctor``."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from workbench.config import default_model
from workbench.model import store


def list_(args: argparse.Namespace) -> None:
    rows = store.list_models()
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    names = list(rows[0])
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def fetch(args: argparse.Namespace) -> None:
    name = default_model() if args.name is None else args.name
    path = store.fetch(name, say=lambda line: print(line, file=sys.stderr))
    print(json.dumps({"name": name, "path": str(path)}) if args.json else path)


def info(args: argparse.Namespace) -> None:
    facts = store.info(default_model() if args.name is None else args.name)
    if args.json:
        print(json.dumps(facts, indent=2))
        return
    _print(facts)


def doctor(args: argparse.Namespace) -> int:
    from workbench import doctor

    return doctor.main(args.json)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def _print(facts: dict[str, Any], indent: str = "") -> None:
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            _print(value, indent + "  ")
        else:
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
            print(f"{indent}{name:<{width}}  {shown}")
