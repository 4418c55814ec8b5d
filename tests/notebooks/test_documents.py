"""README and ARCHITECTURE name only what is there: commands and flags, make targets, files, the list of notebooks."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from workbench.cli.parser import build_parser
from workbench.config import from_options
from workbench.lab.course import notebooks
from workbench.sampling_params import SamplingParams

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
DOCUMENTS = {"README.md": README, "ARCHITECTURE.md": ARCHITECTURE}
COMMANDS = re.findall(r"^workbench .*$", README, re.MULTILINE)
ROOMS = ("workbench", "kernels", "tests", "notebooks", ".ci")


def test_there_are_commands_of_every_kind():
    kinds = {command.split()[1] for command in COMMANDS}
    assert kinds == {"generate", "chat", "bench", "simulate", "quantize", "eval", "info", "model", "doctor"}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_understood(command: str):
    args = build_parser().parse_args(shlex.split(command)[1:])
    options = {name: value for name, value in vars(args).items() if name in ("model", "load_format") and value}
    from_options(options)


def test_an_unknown_flag_would_be_noticed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["generate", "x", "--not-a-flag"])
    assert "--not-a-flag" in capsys.readouterr().err


@pytest.mark.parametrize("name", DOCUMENTS)
def test_flags_named_in_prose_exist(name: str):
    prose = re.sub(r"```.*?```", "", DOCUMENTS[name], flags=re.DOTALL)
    flags = " ".join(re.findall(r"`(--[a-z][^`]*)`", prose))
    build_parser().parse_args(["bench", "throughput", *(part for part in flags.split() if part != "--json")])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_make_targets_exist(name: str):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?:^|`)make ([a-z]+)", DOCUMENTS[name], re.MULTILINE))
    assert targets
    assert {target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_exist(name: str):
    linked = re.findall(r"\]\(([^)#\s]+)\)", DOCUMENTS[name])
    quoted = [path for path in re.findall(r"`([\w./-]+)`", DOCUMENTS[name]) if "/" in path and path.startswith(ROOMS)]
    assert [path for path in [*linked, *quoted] if not path.startswith("https:") and not (ROOT / path).exists()] == []


def test_every_room_is_described():
    rooms = {path.name for path in (ROOT / "workbench").iterdir() if (path / "__init__.py").is_file()}
    table = ARCHITECTURE.split("## Rooms")[1].split("\n## ")[0]
    assert {room for room in rooms if f"`workbench/{room}/`" not in table} == set()


def test_the_syllabus_is_the_courses_list():
    rows = re.findall(
        r"^\| (?:\[(\w+)\]\(notebooks/\1\.ipynb\)|(\w+)) \| (.*) \| (here|planned) \|$", README, re.MULTILINE
    )
    listed = [(linked or plain, idea, today) for linked, plain, idea, today in rows]
    here = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    wanted = [(nb.name, nb.idea, "here" if nb.name in here else "planned") for nb in notebooks()]
    assert listed == wanted
    assert here <= {nb.name for nb in notebooks()}


def test_python_in_the_readme_uses_real_options():
    source = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    options = {
        node.func.id: {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
        for node in calls
        if isinstance(node.func, ast.Name) and node.func.id in ("LLM", "SamplingParams")
    }
    from_options(options["LLM"])
    SamplingParams(**options["SamplingParams"])


def test_architecture_is_short():
    assert len(ARCHITECTURE.splitlines()) <= 240
