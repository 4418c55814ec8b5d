"""The reader's progress: nothing is lost, whatever else happens to the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.files import write_atomically
from workbench.lab.progress import SCHEMA_VERSION, Progress, open_progress

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "progress.json"


def test_entries_come_back_in_a_later_session(path: Path) -> None:
    progress = Progress(path)
    progress.put("01", "predictions", "decode", {"value": 20, "unit": "ms"})
    progress.put("00", "predictions", "해", {"value": 1, "unit": ""})
    progress.record_exercise("01", "kv-bytes", "passes")
    later = Progress(path)
    assert later.entries("01", "predictions") == {"decode": {"value": 20, "unit": "ms"}}
    assert later.entries("01", "exercises") == {"kv-bytes": {"state": "passes"}}
    assert list(later.notebooks("predictions")) == ["00", "01"] and later.notebooks("scoreboard") == {}
    assert json.loads(path.read_text(encoding="utf-8"))["schema_version"] == SCHEMA_VERSION


def test_a_session_sees_what_another_one_kept_meanwhile(path: Path) -> None:
    one, other = Progress(path), Progress(path)
    one.put("01", "measurements", "a", 1)
    other.put("01", "measurements", "b", 2)
    assert one.entries("01", "measurements") == {"a": 1, "b": 2}


def test_an_unknown_kind_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="'guesses' is no kind of progress: predictions"):
        Progress(path).put("01", "guesses", "a", 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema_version": 1, "noteb', "Unterminated string"),
        ("", "Expecting value"),
        ("[]", "it does not hold notebooks"),
        ('{"schema_version": 7, "notebooks": {}}', "schema version 7, not 1"),
        ('{"schema_version": 1, "notebooks": {"01": {"predictions": []}}}', "notebook '01' is damaged"),
    ],
)
def test_a_damaged_file_is_set_aside_and_said_so(path: Path, text: str, why: str) -> None:
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    said: list[str] = []
    progress = Progress(path, said.append)
    progress.put("01", "predictions", "a", 1)
    assert len(said) == 1 and said[0].endswith("it is set aside as progress.json.bad") and why in said[0]
    assert path.with_name("progress.json.bad").read_text(encoding="utf-8") == text
    assert Progress(path, said.append).entries("01", "predictions") == {"a": 1} and len(said) == 1


def test_damage_amid_a_session_costs_nothing_that_it_had_seen(path: Path) -> None:
    said: list[str] = []
    progress = Progress(path, said.append)
    progress.put("01", "predictions", "a", 1)
    for number in (1, 2):
        path.write_text("{", encoding="utf-8")
        progress.put("01", "predictions", "b", number)
    assert Progress(path).entries("01", "predictions") == {"a": 1, "b": 2}
    assert [line.split()[-1] for line in said] == ["progress.json.bad", "progress.json.bad2"]


def test_a_folder_that_cannot_be_written_leaves_the_session_its_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    progress = Progress(tmp_path / "file" / "progress.json", said.append)
    progress.put("01", "predictions", "a", 1)
    assert progress.entries("01", "predictions") == {"a": 1}
    assert len(said) == 1 and said[0].startswith("progress is kept for this session only: ")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.json"]


def test_a_written_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", "text")
    (tmp_path / "b.json").write_text("text")
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "b.json").stat().st_mode


WRITER = """
import sys
from pathlib import Path
from workbench.lab.progress import Progress
progress = Progress(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    progress.put("01", "measurements", f"{sys.argv[2]}{number}", number)
"""


def writers(path: Path) -> int:
    """How many of 2 × 100 entries are there after two processes wrote at once."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for process in running:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    return len(Progress(path).entries("01", "measurements"))


def test_two_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    assert writers(path) == 200


def test_the_tier_and_the_environment_say_where(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    monkeypatch.delenv("WORKBENCH_PROGRESS", raising=False)
    assert open_progress("cpu").path == tmp_path / "progress.json"
    assert open_progress("tiny").path is None and open_progress("cpu", keep=False).path is None
    monkeypatch.setenv("WORKBENCH_PROGRESS", str(tmp_path / "mine.json"))
    assert open_progress("tiny").path == tmp_path / "mine.json"


def test_without_a_file_a_session_remembers(tmp_path: Path) -> None:
    progress = Progress(None)
    progress.put("01", "predictions", "a", 1)
    assert progress.entries("01", "predictions") == {"a": 1} and not os.listdir(tmp_path)
