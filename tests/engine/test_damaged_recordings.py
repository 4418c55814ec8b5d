"""Recordings that were cut short, edited by hand or are something else: told by file and line, never another error."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.engine.paged_fake import greedy, open_engine
from workbench.engine.replay import replay
from workbench.engine.trace import StepTrace, read_run
from workbench.errors import UsageError, WorkbenchError
from workbench.sampling_params import SamplingParams

NONSENSE: list[Any] = [None, True, -1, 0, 2**31, 10**30, 1.5, float("nan"), "", "x", [], [1], ["x"], {}, {"x": 1}]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run with everything in it: forks, an abort, a stop token, a bias, a request that is preempted."""
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    engine = open_engine((5,), num_kv_blocks=7, block_size=3, max_model_len=18, max_num_batched_tokens=7)
    with engine.record(path):
        engine.add_request([1, 2, 3, 4], greedy(9, n=2, stop_token_ids=[7]), "a")
        engine.add_request([3, 4], SamplingParams(logit_bias={3: 1.5}, max_tokens=8), "b")
        engine.step()
        engine.add_request([9], greedy(6), "c")
        engine.step()
        engine.abort("b")
        while engine.has_unfinished():
            engine.step()
    found = path.read_text().splitlines(keepends=True)
    assert len(found) > 6 and not any(step.differences() for step in replay(path))
    return found


def attempt(path: Path, text: str | bytes) -> str | None:
    """None if the recording still replays; else the words of its refusal, which must name the file and the line."""
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    try:
        for step in replay(path):
            step.differences()
    except WorkbenchError as error:
        words = str(error)
        assert str(path) in words and ("line" in words or "schema_version" in words)
        assert "\n" not in words and len(words) < 1200, words
        return words
    return None


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_line_cut_short_is_told_with_its_number(tmp_path: Path, lines: list[str], number: int) -> None:
    path, whole = tmp_path / "run.jsonl", lines[number - 1]
    before = "".join(lines[: number - 1])
    for cut in (1, 2, len(whole) // 3, len(whole) // 2, len(whole) - 3):
        words = attempt(path, before + whole[:cut])
        assert words is not None and ("not a recorded run" in words if number == 1 else f"line {number}," in words), cut
    assert attempt(path, before + whole.rstrip("\n")) is None or number == 1, "the last newline is not needed"


def test_steps_before_the_damage_are_given(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(lines[:4]) + '{"step": 3\n')
    steps: Iterator[StepTrace] = read_run(path)[1]
    assert [next(steps).step for _ in range(3)] == [0, 1, 2]
    with pytest.raises(WorkbenchError, match=r"run\.jsonl, line 5, is damaged: it is not whole JSON"):
        next(steps)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header, step: header.pop("config"), "line 1, is damaged: config=None must be an object"),
        (lambda header, step: header["config"].update(block_size="x"), "line 1, .*block_size='x' must be of type int"),
        (lambda header, step: header["config"].update(colour=1), "line 1, .*unknown engine option 'colour'"),
        (lambda header, step: header["config"].update(num_kv_blocks=None), "line 1, .*lacks num_kv_blocks"),
        (lambda header, step: header.update(eos_token_ids=[1.5]), r"line 1, .*eos_token_ids=\[1.5\] must be a list"),
        (lambda header, step: header.pop("eos_token_ids"), "line 1, .*eos_token_ids=None"),
        (lambda header, step: step.pop("scheduled"), "line 2, .*scheduled is missing"),
        (lambda header, step: step.update(colour=1), "line 2, .*a step has no field 'colour'"),
        (lambda header, step: step.update(blocks=[]), r"line 2, .*blocks=\[\] must be an object"),
        (lambda header, step: step["blocks"].update(free=-1), "line 2, .*blocks.free=-1 must be a whole number from 0"),
        (lambda header, step: step["scheduled"][0].pop("kind"), r"line 2, .*scheduled\[0\].kind is missing"),
        (lambda header, step: step["inputs"][0].update(abort="a"), r"line 2, .*inputs\[0\].* one of add, abort, "),
        (lambda header, step: step["inputs"][0]["add"].pop("params"), r"line 2, .*inputs\[0\].add lacks params"),
        (
            lambda header, step: step["inputs"][0]["add"]["params"].update(n="2"),
            "line 2, .*n='2' must be a whole number",
        ),
        (lambda header, step: step["inputs"][0]["add"]["params"].update(x=2), "line 2, .*unknown sampling option 'x'"),
        (lambda header, step: step["inputs"][0]["add"].update(prompt_token_ids=[]), "line 2, .*the prompt is empty"),
        (lambda header, step: step.update(time=float("inf")), "line 2, .*time=inf must be a finite number"),
        (lambda header, step: step["phases"].update(forward="x"), "line 2, .*phases.forward='x' must be"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, lines: list[str], change: Any, words: str) -> None:
    header, step = json.loads(lines[0]), json.loads(lines[1])
    change(header, step)
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join([json.dumps(header), json.dumps(step), *lines[2:]]))
    with pytest.raises(WorkbenchError, match=words):
        list(replay(path))


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*here, key)
        yield from places(one, (*here, key))


@pytest.mark.parametrize("seed", range(4))
def test_any_value_anywhere_replays_or_is_told(tmp_path: Path, lines: list[str], seed: int) -> None:
    """One value of one line is replaced, removed or added, two hundred times over."""
    draw, path, told = Random(seed), tmp_path / "run.jsonl", 0
    parsed = [json.loads(line) for line in lines]
    for _ in range(200):
        damaged = copy.deepcopy(parsed)
        number = draw.choice([0, 0, 1, 1, draw.randrange(len(lines))])
        *way, last = draw.choice(list(places(damaged[number])))
        holder = damaged[number]
        for key in way:
            holder = holder[key]
        action = draw.randrange(4)
        if action == 0:
            del holder[last]
        elif action == 1 and isinstance(holder, dict):
            holder[draw.choice(["x", "", "n", "abort", "add"])] = draw.choice(NONSENSE)
        else:
            holder[last] = draw.choice(NONSENSE)
        told += attempt(path, "\n".join(map(json.dumps, damaged))) is not None
    assert told > 40


@pytest.mark.parametrize("seed", range(3))
def test_any_damage_to_the_bytes_replays_or_is_told(tmp_path: Path, lines: list[str], seed: int) -> None:
    draw, path, whole = Random(seed), tmp_path / "run.jsonl", "".join(lines).encode()
    for _ in range(150):
        data = bytearray(whole[: draw.randrange(len(whole))] if draw.random() < 0.3 else whole)
        for _ in range(draw.randrange(4)):
            data[draw.randrange(len(data) or 1) : draw.randrange(len(data) or 1)] = draw.choice(
                [b"", b"\xff", b"\n", b"[" * 5000, b'"', b"\0", b"9" * 5000, "\u2028".encode()]
            )
        attempt(path, bytes(data))


def test_text_with_other_line_ends_is_one_line(tmp_path: Path) -> None:
    engine = open_engine()
    with engine.record(tmp_path / "run.jsonl", note="a\u2028b\x85c"):
        engine.add_request([1], greedy(2), "x\u2028y\x85z\x0b")
        while engine.has_unfinished():
            engine.step()
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(json.loads(line), ensure_ascii=False) + "\n" for line in path.open()))
    assert not any(step.differences() for step in replay(path))


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(WorkbenchError, match="cannot be read"):
            read_run(path)


def test_changes_that_a_request_cannot_live_with_are_wrong_usage(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(lines))
    with pytest.raises(UsageError, match="num_kv_blocks"):
        list(replay(path, num_kv_blocks=1))
