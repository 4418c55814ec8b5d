"""The lesson: what it prints, keeps, shows and refuses."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.lessons import begin
from workbench.doctor import Check
from workbench.errors import UsageError
from workbench.lab import banner, lesson, tier
from workbench.lab.measured import Measured, against_guess, against_roofline, number

ROOT = Path(__file__).parents[2]


class Timed:
    """What a Timing offers: seconds, their median and quartiles."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds
        self.low, self.median, self.high = seconds


# -- start


def test_the_banner_says_what_this_is(tmp_path: Path, monkeypatch, capsys) -> None:
    begun = begin(monkeypatch, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "01_where_time_goes"
    assert [line.split()[0] for line in lines[1:]] == ["device", "memory", "versions", "canary", "mode"]
    assert f"torch {torch.__version__}" in lines[3] and "tier cpu; seed 0" in lines[2]
    assert lines[5] == "  mode      measured: every number comes from this machine, now"
    assert (begun.number, begun.device, begun.mode, begun.tier, begun.seed) == ("01", "cpu", "measured", "cpu", 0)
    assert lesson.current_lesson() is begun


def test_a_notebook_that_is_not_in_the_course_is_refused(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(UsageError, match=r"there is no notebook \['01'\]; the course has 00"):
        begin(monkeypatch, tmp_path, ["01"])
    with pytest.raises(UsageError, match=r"there is no notebook '18'; the course has 00, 01, .*, 17$"):
        begin(monkeypatch, tmp_path, "18")


def test_chance_is_seeded(tmp_path: Path, monkeypatch) -> None:
    drawn = []
    for _ in range(2):
        begin(monkeypatch, tmp_path)
        drawn.append((random.random(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"tier": "huge"}, "WORKBENCH_TIER='huge' is no tier: choose from tiny, cpu, gpu"),
        (
            {"WORKBENCH_DEVICE": "tpu"},
            "device='tpu' is not known .WORKBENCH_DEVICE says so.; choose from auto, cpu, cuda",
        ),
        ({"WORKBENCH_TURN_OFF": "max_num_seqs"}, "is no JSON"),
        ({"WORKBENCH_TURN_OFF": "[1]"}, "must be a JSON object of engine options"),
        ({"WORKBENCH_TURN_OFF": '{"max_num_seq": 1}'}, "unknown engine option 'max_num_seq'; did you mean"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, monkeypatch, variables, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        begin(monkeypatch, tmp_path, **variables)


LIGHT = """
import sys
import workbench.lab
heavy = [name for name in ("torch", "numpy", "ipywidgets", "IPython") if name in sys.modules]
assert not heavy, heavy
for name in ("ipywidgets", "IPython"):
    sys.modules[name] = None  # importing it fails
from workbench.lab import start
lesson = start("01")
lesson.measure("x", 1.0, "ms")
"""


def test_a_lesson_needs_neither_jupyter_nor_widgets(tmp_path: Path) -> None:
    settings = {"PYTHONPATH": str(ROOT), "WORKBENCH_HOME": str(tmp_path), "WORKBENCH_DEVICE": "cpu"}
    done = subprocess.run([sys.executable, "-c", LIGHT], env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "x     –          –         1 ms      no recorded run" in done.stdout


def test_every_public_name_of_the_lab_is_there() -> None:
    import workbench.lab as lab

    assert {"start", "Table", "course_map", "timeline"} <= set(dir(lab))
    assert all(getattr(lab, name) is not None for name in lab.__all__)
    with pytest.raises(AttributeError, match="no attribute 'finish'"):
        _ = lab.finish


@pytest.mark.parametrize(
    ("device", "free", "expected"),
    [("cpu", 1 << 30, "tiny"), ("cpu", 4 << 30, "cpu"), ("cuda", 4 << 30, "cpu"), ("cuda", 80 << 30, "gpu")],
)
def test_the_tier_comes_from_device_and_memory(monkeypatch, device: str, free: int, expected: str) -> None:
    monkeypatch.delenv("WORKBENCH_TIER", raising=False)
    assert tier.choose_tier(device, free) == expected
    monkeypatch.setenv("WORKBENCH_TIER", "tiny")
    assert tier.choose_tier(device, free) == "tiny"


def test_pick_takes_the_value_of_the_tier(tmp_path: Path, monkeypatch) -> None:
    for name, value in {"tiny": 1, "cpu": 2, "gpu": 3}.items():
        assert begin(monkeypatch, tmp_path, tier=name).pick(tiny=1, cpu=2, gpu=3) == value


# -- mode and canary


@pytest.mark.parametrize(
    ("device", "triton", "ok", "mode"),
    [
        ("cpu", False, False, "measured"),
        ("cpu", True, True, "interpreter"),
        ("cpu", True, False, "recorded"),
        ("cuda", False, False, "measured"),
        ("cuda", True, True, "measured"),
        ("cuda", True, False, "recorded"),
    ],
)
def test_the_mode(device: str, triton: bool, ok: bool, mode: str) -> None:
    assert banner.mode_of(device, triton, ok) == mode


def test_the_canary_is_asked_once_and_again_after_a_failure(tmp_path: Path, monkeypatch, capsys) -> None:
    real, answers, asked = banner.doctor.run_checks, [False, True], []

    def run_checks(only):
        if only != ["canary"]:
            return real(only)
        asked.append(only)
        ok = answers[len(asked) - 1]
        return [Check("canary", ok, False, "sings" if ok else "is silent")]

    monkeypatch.setattr(banner.doctor, "run_checks", run_checks)
    assert begin(monkeypatch, tmp_path, "01").mode == "measured" and asked == []
    assert "canary    not asked: this notebook has no Triton kernel" in capsys.readouterr().out
    modes = [begin(monkeypatch, tmp_path, "06").mode for _ in range(4)]
    assert modes == ["recorded", "interpreter", "interpreter", "interpreter"] and len(asked) == 2
    begin(monkeypatch, tmp_path, "01")
    assert "canary    sings" in capsys.readouterr().out.splitlines()[-2]
    (tmp_path / "canary.json").write_text('{"key": "another machine", "value": "sings"}')
    answers.append(True)
    begin(monkeypatch, tmp_path, "06")
    assert len(asked) == 3


# -- predict and measure


@pytest.mark.parametrize(
    ("value", "choices", "message"),
    [
        ("fast", None, "'fast' is no guess: give a number in ms"),
        (True, None, "True is no guess"),
        (float("nan"), None, "nan is no guess"),
        ([1], None, r"\[1\] is no guess"),
        ("up", ["more", "less"], "'up' is not among the choices: 'more', 'less'"),
        (1, ["more", "less"], "1 is not among the choices"),
        (True, [1, 2], "True is not among the choices: 1, 2"),
    ],
)
def test_what_is_no_guess_is_refused(tmp_path: Path, monkeypatch, value: Any, choices: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"decode: {message}"):
        begin(monkeypatch, tmp_path).predict("decode", value, "ms", choices)


def test_a_guess_is_kept_for_the_next_session(tmp_path: Path, monkeypatch) -> None:
    assert begin(monkeypatch, tmp_path).predict("decode", 20, "ms") == 20
    measured = begin(monkeypatch, tmp_path).measure("decode", 36.0, "ms")
    assert measured.predicted == 20 and measured.gaps == ["1.8 times your guess"]
    assert begin(monkeypatch, tmp_path, "02").measure("decode", 36.0, "ms").predicted is None


GOLDEN = """\
what    predicted  roofline  measured              recorded
------  ---------  --------  --------------------  ---------------
decode  20 ms      25 ms     31 ms (30.5–34, n=3)  no recorded run
1.55 times your guess; 81 % of the roofline. abc+changes, 2026-01-02T03:04, A CPU, 2 threads, torch 2.13
"""
SOURCE = {"commit": "abc", "dirty": True, "date": "2026-01-02T03:04:05", "device": "cpu", "cpu": "A CPU", "threads": 2}


def test_a_measurement_stands_beside_guess_and_roofline(tmp_path: Path, monkeypatch, capsys) -> None:
    begun = begin(monkeypatch, tmp_path)
    monkeypatch.setattr(begun, "_provenance", lambda: SOURCE | {"torch": "2.13"})
    begun.predict("decode", 20, "ms")
    capsys.readouterr()
    measured = begun.measure("decode", Timed(0.0305, 0.031, 0.034), "ms", roofline=Timed(0, 0.025, 0).median * 1000)
    assert capsys.readouterr().out == GOLDEN
    assert repr(measured) == "Measured(decode: 31 ms)" and measured._ipython_display_() is None
    kept = begun.progress.entries("01", "measurements")["decode"]
    assert kept["value"] == pytest.approx(31) and kept["spread"] == pytest.approx([30.5, 34])
    assert kept["unit"] == "ms" and kept["provenance"]["commit"] == "abc"
    assert begun.values()["decode"]["unit"] == "ms"


def test_the_provenance_names_the_real_commit_and_device(tmp_path: Path, monkeypatch) -> None:
    line = begin(monkeypatch, tmp_path).measure("decode", 1.0, "ms").provenance
    assert line.endswith(f"torch {torch.__version__}") and "thread" in line
    done = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    assert line.startswith(done.stdout.strip() or "no commit")


def test_a_prediction_of_the_roofline_is_turned_into_the_unit(tmp_path: Path, monkeypatch) -> None:
    class Prediction:
        seconds = 0.02

    begun = begin(monkeypatch, tmp_path)
    assert begun.measure("a", Timed(0.03, 0.04, 0.05), roofline=Prediction()).row[2:4] == [
        "20 ms",
        "40 ms (30–50, n=3)",
    ]
    assert begun.measure("b", Timed(0.03, 0.04, 0.05), "s", roofline=Prediction()).roofline == 0.02
    with pytest.raises(UsageError, match="c: a time cannot be given in 'tok/s': choose from s, ms"):
        begun.measure("c", 50.0, "tok/s", roofline=Prediction())
    with pytest.raises(UsageError, match="d: roofline='fast'; give a number in ms"):
        begun.measure("d", 50.0, "ms", roofline="fast")


def test_different_units_for_one_name_are_refused(tmp_path: Path, monkeypatch) -> None:
    begun = begin(monkeypatch, tmp_path)
    begun.predict("decode", 20, "ms")
    for unit in ("s", ""):
        with pytest.raises(UsageError, match=f"decode: predicted in 'ms' and measured in '{unit}': give both in one"):
            begun.measure("decode", 0.02, unit)
    begun.measure("decode", 20.0, "ms")
    with pytest.raises(UsageError, match="decode: predicted in 's' and measured in 'ms'"):
        begun.predict("decode", 0.02, "s")
    begun.measure("rate", 5.0, "tok/s")
    with pytest.raises(UsageError, match="rate: measured before in 'tok/s' and now in 'req/s'"):
        begun.measure("rate", 5.0, "req/s")
    with pytest.raises(UsageError, match="a time cannot be given in 'tok/s'"):
        begun.measure("other", Timed(0.1, 0.2, 0.3), "tok/s")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, True])
def test_what_is_no_finite_number_is_refused_everywhere(value, tmp_path: Path, monkeypatch) -> None:
    begun = begin(monkeypatch, tmp_path)
    with pytest.raises(UsageError, match=r"a: .* is no guess: give a number in ms"):
        begun.predict("a", value, "ms")
    with pytest.raises(UsageError, match=r"a: measured .*; give a number"):
        begun.measure("a", value, "ms")
    with pytest.raises(UsageError, match=r"a: roofline=.*; give a number in ms"):
        begun.measure("a", 1.0, "ms", roofline=value)
    with pytest.raises(UsageError, match="tok/s: measured"):
        begun.scoreboard(**{"tok/s": value})
    assert begun.values() == {} and not (tmp_path / "progress.json").exists()


def test_numbers_of_numpy_are_kept_as_plain_ones(tmp_path: Path, monkeypatch) -> None:
    import numpy

    begun = begin(monkeypatch, tmp_path)
    assert type(begun.predict("a", numpy.int64(3))) is int
    measured = begun.measure("a", numpy.float32(1.5), roofline=numpy.int64(2))
    assert type(measured.value) is float and measured.predicted == 3 and measured.roofline == 2.0
    with pytest.raises(UsageError, match="a prediction needs a name in words, not None"):
        begun.predict(None, 1)  # type: ignore[arg-type]


def test_a_direction_is_compared_in_words(tmp_path: Path, monkeypatch) -> None:
    begun = begin(monkeypatch, tmp_path)
    begun.predict("slower", "prefill", choices=["prefill", "decode"])
    assert begun.measure("slower", "decode").gaps == ["not as you guessed (prefill)"]
    assert begun.measure("slower", "prefill").gaps == ["as you guessed"]
    with pytest.raises(UsageError, match="slower: 'both' is not among the choices: 'prefill', 'decode'"):
        begun.measure("slower", "both")
    with pytest.raises(UsageError, match="free: 'both' is not among the choices: none were predicted"):
        begun.measure("free", "both")
    with pytest.raises(UsageError, match=r"odd: measured \[1\]; give a number, a Timing"):
        begun.measure("odd", [1])
    assert begun.values() == {}


@pytest.mark.parametrize(
    ("guess", "value", "words"),
    [
        (10, 10, "exactly your guess"),
        (10, 10.4, "within 5 % of your guess"),
        (10, 18, "1.8 times your guess"),
        (10, 5.5, "55 % of your guess"),
        (1000, 10, "your guess was 100 times too high"),
        (0, 3, "3 ms above your guess"),
        (2, -1, "3 ms below your guess"),
    ],
)
def test_the_gap_to_the_guess(guess: float, value: float, words: str) -> None:
    assert against_guess(guess, value, "ms") == words


@pytest.mark.parametrize(
    ("unit", "higher", "roof", "value", "words"),
    [
        ("ms", None, 10, 20, "50 % of the roofline"),
        ("tok/s", None, 100, 62, "62 % of the roofline"),
        ("x", True, 100, 62, "62 % of the roofline"),
        ("x", False, 62, 100, "62 % of the roofline"),
        ("bytes/token", None, 2, 3, "3 bytes/token against a roofline of 2 bytes/token"),
        ("ms", None, 20, 10, "200 % of the roofline: more than it allows, so a count or the machine's rates are off"),
    ],
)
def test_the_gap_to_the_roofline(unit: str, higher: bool | None, roof: float, value: float, words: str) -> None:
    assert against_roofline(roof, value, unit, higher) == words


def test_numbers_show_three_digits() -> None:
    assert [number(v) for v in (12345.6, 12345, 31.04, 0.01234, 5, 0.0)] == [
        "12,346",
        "12,345",
        "31",
        "0.0123",
        "5",
        "0",
    ]


def test_all_so_far_in_one_table(tmp_path: Path, monkeypatch) -> None:
    begun = begin(monkeypatch, tmp_path)
    assert begun.compare().rows == []
    begun.predict("a", 1, "ms")
    begun.measure("a", 2.0, "ms")
    begun.measure("b", 3.0, "GB/s", roofline=6)
    assert [(row[0], row[-1]) for row in begun.compare().rows] == [
        ("a", "2 times your guess"),
        ("b", "50 % of the roofline"),
    ]


def test_a_ratio_of_bytes_is_no_roofline(tmp_path: Path, monkeypatch) -> None:
    measured = begin(monkeypatch, tmp_path).measure("a", 1.8, "×", roofline=1.5, by_bytes=True)
    assert measured.row[2] == "1.5 × by bytes" and measured.gaps == ["120 % of what bytes say"]


def test_tests_and_turned_off_runs_leave_the_readers_progress_alone(tmp_path: Path, monkeypatch) -> None:
    for settings in ({"tier": "tiny"}, {"WORKBENCH_TURN_OFF": '{"max_num_seqs": 1}'}):
        begun = begin(monkeypatch, tmp_path, **settings)  # type: ignore[arg-type]
        begun.predict("a", 1, "ms")
        assert begun.measure("a", 2.0, "ms").predicted == 1
        assert not (tmp_path / "progress.json").exists()


# -- over all notebooks


def test_the_scoreboard_follows_the_reader(tmp_path: Path, monkeypatch) -> None:
    begin(monkeypatch, tmp_path, "02").scoreboard(**{"TTFT ms": Timed(0.01, 0.0125, 0.02), "quality": "same tokens"})
    table = begin(monkeypatch, tmp_path, "01").scoreboard(**{"tok/s": 80, "KV MB": 1234.5})
    assert list(table.head) == ["notebook", "TTFT ms", "ITL ms", "tok/s", "KV MB", "quality", "on"]
    assert [list(row[:6]) for row in table.rows] == [
        ["01_where_time_goes", "–", "–", "80", "1,234", "–"],
        ["02_batching", "12.5", "–", "–", "–", "same tokens"],
    ]
    assert str(table.rows[0][6]).endswith("tier cpu")
    assert len(begin(monkeypatch, tmp_path, "03").scoreboard().rows) == 2


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"latency": 1}, "latency is not on the scoreboard: it has TTFT ms, ITL ms, tok/s, KV MB, quality"),
        ({"tok/s": "fast"}, "tok/s: 'fast' is no number"),
        ({"ITL ms": None}, "ITL ms: measured None"),
    ],
)
def test_what_is_no_metric_is_refused(tmp_path: Path, monkeypatch, metrics: dict[str, Any], message: str) -> None:
    begun = begin(monkeypatch, tmp_path)
    with pytest.raises(UsageError, match=message):
        begun.scoreboard(**metrics)
    assert begun.progress.entries("01", "scoreboard") == {}


# -- must_trip


def test_must_trip_catches_what_it_names(tmp_path: Path, monkeypatch, capsys) -> None:
    begun = begin(monkeypatch, tmp_path)
    capsys.readouterr()
    with begun.must_trip(AssertionError, "leaked"):
        raise AssertionError("block 3 has leaked")
    assert capsys.readouterr().out == "caught: AssertionError: block 3 has leaked\n"


@pytest.mark.parametrize(
    ("body", "raised", "message"),
    [
        (None, AssertionError, r"nothing failed: ValueError \('leaked'\) was expected"),
        (ValueError("other"), AssertionError, "failed for another reason: 'other' does not say 'leaked'"),
        (KeyError("leaked"), KeyError, "leaked"),
    ],
)
def test_must_trip_lets_nothing_else_pass(tmp_path: Path, monkeypatch, body, raised, message: str) -> None:
    begun = begin(monkeypatch, tmp_path)
    with pytest.raises(raised, match=message), begun.must_trip(ValueError, "leaked"):
        if body is not None:
            raise body
    for kind, words, refusal in (
        (ValueError, "", "must_trip needs words"),
        (ValueError, 3, "must_trip needs words"),
        ("ValueError", "leaked", "needs a class of errors, not 'ValueError'"),
    ):
        with pytest.raises(UsageError, match=refusal), begun.must_trip(kind, words):
            pass


def test_measured_is_plain_data() -> None:
    assert Measured("a", 1.5, "ms").row == ["a", "–", "–", "1.5 ms", "no recorded run"]
    assert json.dumps(Measured("a", 1.5, "ms").gaps) == "[]"
