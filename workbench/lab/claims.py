"""The claims that the course checks: common statements about LLM serving, what is right, and where each is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from workbench.errors import UsageError
from workbench.lab.table import Cell, Table

VERDICTS = {
    "confirmed here": "decode",
    "contradicted": "alert",
    "depends on hardware": "recompute",
    "published only": "quiet",
}
"""What a notebook may say of a claim, and the tone it is shown in."""
UNCONFIRMED = " (from memory, not yet looked up)"


class Claim(NamedTuple):
    id: str
    claim: str
    """As it is commonly said."""
    teach: str
    """What is right, or how it is settled."""
    notebooks: tuple[str, ...]
    """Numbers of the notebooks that must give a verdict."""
    recalled: bool = False
    """Whether a figure in it still has to be looked up in a primary source."""


def all_claims() -> list[Claim]:
    """Every claim, in the order of its id's chapter."""
    text = resources.files("workbench.lab").joinpath("data", "claims.json").read_text(encoding="utf-8")
    return [Claim(**entry | {"notebooks": tuple(entry["notebooks"])}) for entry in json.loads(text)]


def claims_of(notebook: str) -> list[Claim]:
    """Those that the notebook of this number must give a verdict on."""
    return [claim for claim in all_claims() if notebook in claim.notebooks]


def claims_table(notebook: str, verdicts: Mapping[str, tuple[str, str]]) -> Table:
    """One row a claim of the notebook: ``verdicts`` gives for its id the verdict and the id of the cell that shows it.

    Raises UsageError for a claim left out, an id that is none of this notebook's, or a verdict that is none.
    """
    claims = claims_of(notebook)
    ids = [claim.id for claim in claims]
    if missing := [claim_id for claim_id in ids if claim_id not in verdicts]:
        raise UsageError(f"no verdict on {', '.join(missing)}: notebook {notebook} answers for {', '.join(ids)}")
    if extra := [claim_id for claim_id in verdicts if claim_id not in ids]:
        raise UsageError(
            f"{', '.join(extra)} is no claim of notebook {notebook}: it answers for {', '.join(ids) or 'none'}"
        )
    rows: list[list[Cell | str | int]] = []
    for claim in claims:
        verdict, shown = verdicts[claim.id]
        if verdict not in VERDICTS:
            raise UsageError(f"{claim.id}: {verdict!r} is no verdict: choose from {', '.join(VERDICTS)}")
        right = claim.teach + (UNCONFIRMED if claim.recalled else "")
        rows.append([claim.id, claim.claim, right, Cell(verdict, VERDICTS[verdict]), shown])
    return Table(["id", "claim", "what is right", "verdict", "shown in cell"], rows)
