"""The rounds over fake workers: who is asked when, what is made of the times, and what becomes of those that fail."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from workbench.measure.peers.process import Worker
from workbench.measure.peers.rounds import Found, Rounds, figures, ratio, same_tokens
from workbench.measure.peers.systems import System
from workbench.measure.peers.workloads import Job, jobs

SCRIPT = Path(__file__).parent / "fake_worker.py"
STREAM = Job("a", "one", "decode tok/s", [[1, 2, 3]], [5])
MIXED = Job("b", "two", "output tok/s", [[1], [2, 3]], [4, 6])
SHARED = Job("d", "four", "s", [[1, 2], [1, 3]], [2, 2], head=1)


class Stage:
    """Fake systems, and what they noted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.diary, self.said = folder, folder / "diary", []
        self.diary.touch()
        self.say = self.said.append

    def system(self, name, ours=False, **options):
        options = {"name": name, "diary": str(self.diary), "threads": 1, **options}
        package = "workbench" if ours else "fake"
        return System(name, package, (sys.executable, str(SCRIPT)), options, memory=1, weight_bytes=4)

    def run(self, systems, jobs, rounds=1, together=True, timeout=30.0):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        took = Rounds(systems, jobs, rounds, timeout, scratch, [5, 6, 7], self.say)
        took.run(together)
        assert not list(scratch.glob("*.npy")), "logits are large: none may be left behind"
        return took

    @property
    def notes(self):
        return self.diary.read_text().splitlines()


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.measure.peers.rounds.SETTLE_SECONDS", 0)
    monkeypatch.setattr("workbench.measure.peers.rounds.idle_shares", lambda workers: dict.fromkeys(workers, 0.0))
    return Stage(tmp_path)


def test_every_workload_goes_through_all_systems_before_the_next(stage):
    systems = [stage.system("none", ours=True), stage.system("x"), stage.system("y")]
    stage.run(systems, [STREAM, MIXED], rounds=2)
    loads = [f"{name} load" for name in ("none", "x", "y")]
    judged = [f"{name} logits" for name in ("none", "x", "y")]
    one_round = [f"{name} run {n}" for n in (1, 2) for name in ("none", "x", "y")]
    assert stage.notes == loads + judged + one_round * 2


def test_in_turn_one_system_does_all_its_work_before_the_next_is_loaded(stage):
    took = stage.run([stage.system("none", ours=True), stage.system("x")], [STREAM, MIXED], rounds=2, together=False)
    first = ["none load", "none logits", "none run 1", "none run 2", "x load", "x logits", "x run 1", "x run 2"]
    assert stage.notes == first + [note for note in first if "logits" not in note]
    assert took.found["x"].kl is not None and None not in took.found["x"].runs["b"]


def interrupting(said, words):
    def say(line):
        said.append(line)
        if words in line:
            raise KeyboardInterrupt

    return say


@pytest.mark.parametrize("together", [True, False])
def test_what_was_measured_until_an_interrupt_is_kept(stage, together):
    stage.say = interrupting(stage.said, "round 2/3 (a) none")
    took = stage.run([stage.system("none", ours=True), stage.system("x")], [STREAM], rounds=3, together=together)
    assert [run is None for run in took.found["none"].runs["a"]] == [False, False, True]
    assert figures(took.found["none"], STREAM)["median"] > 0 and "interrupted" in stage.said[-1]
    assert took.interrupted


def test_a_second_interrupt_leaves_no_halted_worker_behind(stage, monkeypatch):
    """A halted process would stay for ever: it does not notice that nobody is there."""
    closed, close = [], Worker.close

    def interrupted_once(worker, patience=0):
        close(worker, patience)
        closed.append(worker)
        if len(closed) == 1:
            raise KeyboardInterrupt

    stage.say = interrupting(stage.said, "round 1/3 (a) x")
    monkeypatch.setattr(Worker, "close", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        stage.run([stage.system("none", ours=True), stage.system("x")], [STREAM], rounds=3)
    assert len(closed) == 2


def test_an_interrupt_before_anything_was_measured_ends_it(stage):
    stage.say = interrupting(stage.said, "loading x")
    with pytest.raises(KeyboardInterrupt):
        stage.run([stage.system("none", ours=True), stage.system("x")], [STREAM])


def test_figures_are_medians_and_ratios_are_taken_within_rounds(stage):
    # A slow second round meets both, so the ratio does not notice it: 2, 2 and 3 times.
    ours, theirs = stage.system("none", ours=True, seconds=[1, 10, 1]), stage.system("x", seconds=[2, 20, 3])
    found = stage.run([ours, theirs], [MIXED], rounds=3).found
    others = figures(found["none"], MIXED)["others"]
    assert all(0 <= share <= 1 for share in others)
    assert figures(found["none"], MIXED) == {
        "others": others,
        "median": 10, "low": 1, "high": 10, "rounds": [10, 1, 10], "seconds": [1, 10, 1],
        "first_seconds": [0.25] * 3, "whole": 10,
    }  # fmt: skip
    assert ratio(found["none"], found["x"], MIXED) == 2
    assert ratio(found["x"], found["none"], MIXED) == 0.5


def test_less_is_better_where_seconds_are_counted(stage):
    found = stage.run([stage.system("none", seconds=[1]), stage.system("x", seconds=[4])], [SHARED]).found
    assert figures(found["x"], SHARED)["median"] == 4
    assert ratio(found["none"], found["x"], SHARED) == 4


def test_one_stream_counts_from_the_first_token_to_the_last(stage):
    found = stage.run([stage.system("none", seconds=[2.25])], [STREAM]).found["none"]
    figure = figures(found, STREAM)
    assert figure["median"] == pytest.approx(4 / 2) and figure["whole"] == pytest.approx(5 / 2.25)


@pytest.mark.parametrize(
    ("fail", "at", "reason"),
    [
        ("die", "load", "load: it ended with status 3 at 'load'; its log: .*out of paper"),
        ("raise", "load", "load: load failed: ValueError: no such thing"),
        ("die", "run", "workload a: it ended with status 3 at 'run'; its log: .*out of paper"),
        ("raise", "run", "workload a: run failed: ValueError: no such thing"),
        ("short", "run", "workload a: its answer is wrong: answer 0 has 4 tokens, not 5"),
        ("garbage", "run", "workload a: 'what.*' is no answer to 'run'"),
        ("raise", "logits", "quality: logits failed: ValueError: no such thing"),
        ("hang", "run", "workload a: no answer to 'run' in 10 s"),
    ],
)
def test_what_fails_is_told_and_the_others_go_on(stage, fail, at, reason):
    systems = [stage.system("none", ours=True), stage.system("bad", fail=fail, at=at), stage.system("x")]
    found = stage.run(systems, [STREAM, MIXED], rounds=2, timeout=10.0 if fail == "hang" else 30.0).found
    assert found["bad"].error is not None
    assert re.search(reason, found["bad"].error), found["bad"].error
    assert figures(found["bad"], STREAM) is None and ratio(found["none"], found["bad"], STREAM) is None
    assert found["x"].error is None and None not in found["x"].runs["b"]
    assert any("bad takes no further part" in line for line in stage.said)
    assert sum(note.startswith("bad run") for note in stage.notes) <= 1


def test_a_script_that_is_not_there_is_told(stage):
    missing = System("gone", "fake", ("/no/such/python", "x"), {"threads": 1}, 1, 4)
    found = stage.run([stage.system("none"), missing], [STREAM]).found
    assert "/no/such/python cannot be started" in found["gone"].error
    assert found["none"].error is None


def test_quality_is_measured_against_the_reference(stage):
    systems = [stage.system("none"), stage.system("same"), stage.system("off", shift=2.0, fail="other tokens"),
               stage.system("mute", fail="no logits")]  # fmt: skip
    found = stage.run(systems, [STREAM]).found
    assert found["none"].kl == found["same"].kl == 0 and found["same"].equal_top == 1
    assert found["off"].kl > 0.1 and found["off"].equal_top < 1
    assert found["mute"].kl is None and found["mute"].error is None
    assert same_tokens(found["same"], found["none"], "a") == 1
    assert same_tokens(found["off"], found["none"], "a") == pytest.approx(2 / 5)
    assert same_tokens(Found(), found["none"], "a") is None


def test_a_busy_idler_is_told_and_a_quiet_one_is_not(stage, monkeypatch):
    monkeypatch.setattr("workbench.measure.peers.rounds.idle_shares", lambda workers: {"none": 0.01, "x": 0.9})
    found = stage.run([stage.system("none"), stage.system("x")], [STREAM]).found
    assert (found["none"].idle_cpu, found["x"].idle_cpu) == (0.01, 0.9)
    assert [line for line in stage.said if "idle" in line] == [
        "  x takes 90% of a processor while it is idle; it is halted while others run"
    ]


def test_workers_have_threads_and_nothing_of_the_projects_environment(stage, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    found = stage.run([stage.system("none", threads=3)], [STREAM]).found["none"]
    assert found.info["env"]["OMP_NUM_THREADS"] == "3"
    assert "PYTHONPATH" not in found.info["env"]


def test_real_jobs_fit_what_workers_get():
    assert [job.name for job in jobs(["d", "a"], 100, 0)] == ["a", "d"]
