"""A worker's process: halted means halted, an end is an end for its children too, idle time is counted."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from workbench.measure.peers.process import PeerFailed, Worker, idle_shares

SCRIPT = Path(__file__).parent / "fake_worker.py"
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def start(tmp_path):
    workers = []

    def started(command=(sys.executable, str(SCRIPT)), **options):
        worker = Worker(command, os.environ, tmp_path / f"{len(workers)}.log")
        workers.append(worker)
        if options:
            options = {"do": "load", "name": "w", "diary": str(tmp_path / "diary"), **options}
            worker.pid = worker.ask(options, 30)["pid"]
        return worker

    yield started
    for worker in workers:
        worker.close(patience=0)


def state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def becomes(pid: int, wanted: set[str | None]) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if state(pid) in wanted:
            return True
        time.sleep(0.01)
    return False


@linux
def test_a_halted_worker_and_its_children_do_not_run_until_they_go_on(start, tmp_path):
    worker = start(threads=1, child=str(tmp_path / "child"))
    child = int((tmp_path / "child").read_text())
    worker.stop()
    assert becomes(worker.pid, {"T"}) and becomes(child, {"T"})
    worker.go()
    assert becomes(worker.pid, {"S"}) and becomes(child, {"S"})
    assert worker.ask({"do": "run", "prompts": [[1]], "output_lens": [1], "head": 0}, 30)["answers"] == [[1]]


@linux
def test_the_end_takes_children_and_halted_workers_along(start, tmp_path):
    worker = start(threads=1, child=str(tmp_path / "child"))
    child = int((tmp_path / "child").read_text())
    worker.stop()
    worker.close(patience=0)
    assert becomes(worker.pid, {None, "Z"}) and becomes(child, {None, "Z"})
    with pytest.raises(PeerFailed):
        worker.ask({"do": "logits", "ids": []}, 5)


@linux
def test_an_interrupt_amid_a_patient_end_ends_it_at_once(start, monkeypatch):
    # Deaf to the end of its input, so that only force ends it.
    deaf = "import os, time\nprint('{\"ok\": %d}' % os.getpid(), flush=True)\ntime.sleep(600)"
    worker = start((sys.executable, "-c", deaf))
    pid, wait = worker.ask({"do": "anything"}, 30), worker._process.wait

    def interrupted(timeout=None):
        if timeout is not None:
            raise KeyboardInterrupt
        return wait()

    monkeypatch.setattr(worker._process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.close()
    assert becomes(pid, {None, "Z"})


@linux
def test_idle_time_is_counted_for_the_whole_group(start):
    spin = "import sys\nprint('{\"ok\": 1}', flush=True)\nwhile True: pass"
    quiet, busy = start(threads=1), start((sys.executable, "-c", spin))
    assert busy.ask({"do": "anything"}, 30) == 1
    shares = idle_shares({"quiet": quiet, "busy": busy}, 0.5)
    assert shares["quiet"] < 0.05 < shares["busy"]
    busy.stop()
    assert idle_shares({"busy": busy}, 0.3)["busy"] < 0.05


def test_what_libraries_print_is_no_answer_but_stands_in_the_log(start):
    worker = start(threads=1)
    assert "a library greets" in worker.log.read_text()
