"""The list of claims and the table that a notebook makes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab.lessons import begin
from workbench.errors import UsageError
from workbench.lab.claims import UNCONFIRMED, VERDICTS, all_claims, claims_of, claims_table
from workbench.lab.course import notebooks

BOTH = {"B1": ("confirmed here", "phases"), "B2": ("depends on hardware", "batch")}


def test_every_claim_is_whole_and_belongs_to_a_notebook():
    claims, known = all_claims(), {notebook.number for notebook in notebooks()}
    ids = [claim.id for claim in claims]
    assert len(ids) == len(set(ids)) == 88
    assert all(re.fullmatch(r"[ABDPQS]\d+", claim_id) for claim_id in ids)
    # Numbered without a gap in each chapter: a row that was lost on the way would leave one.
    for chapter in "BAQDPS":
        numbers = [int(claim_id[1:]) for claim_id in ids if claim_id[0] == chapter]
        assert numbers == list(range(1, len(numbers) + 1))
    assert all(claim.claim and claim.teach and set(claim.notebooks) <= known for claim in claims)
    assert all(claim.notebooks for claim in claims)
    text = " ".join(claim.claim + claim.teach for claim in claims)
    assert "`" not in text and "**" not in text and "[r]" not in text


def test_what_is_recalled_is_shown_as_such():
    assert [claim.id for claim in all_claims() if claim.recalled] == ["D2"]
    verdicts = {claim.id: ("published only", "x") for claim in claims_of("13")}
    marked = [row[0] for row in claims_table("13", verdicts).rows if str(row[2]).endswith(UNCONFIRMED)]
    assert marked == ["D2"] and len(verdicts) > 1


def test_the_table_of_a_notebook(tmp_path: Path, monkeypatch):
    table = begin(monkeypatch, tmp_path).claims(BOTH)
    assert [row[0] for row in table.rows] == ["B1", "B2"]
    assert [str(row[3].text) for row in table.rows] == ["confirmed here", "depends on hardware"]  # type: ignore[union-attr]
    assert [row[4] for row in table.rows] == ["phases", "batch"]
    assert set(VERDICTS) == {"confirmed here", "contradicted", "depends on hardware", "published only"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"B1": None}, "no verdict on B1: notebook 01 answers for B1, B2"),
        ({"B3": ("confirmed here", "x")}, "B3 is no claim of notebook 01: it answers for B1, B2"),
        ({"B2": ("maybe", "x")}, "B2: 'maybe' is no verdict: choose from confirmed here, contradicted"),
    ],
)
def test_a_wrong_list_is_refused(changes, message):
    verdicts = {claim_id: verdict for claim_id, verdict in {**BOTH, **changes}.items() if verdict}
    with pytest.raises(UsageError, match=message):
        claims_table("01", verdicts)
