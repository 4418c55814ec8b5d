"""A worker that computes nothing: it notes what it was asked and misbehaves on request."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "workbench" / "measure" / "peers" / "workers"))

import numpy as np
from protocol import Clock, serve


class Fake:
    def __init__(self, name, diary, threads=1, seconds=(), fail=None, at=None, shift=0.0, child=None):
        """``seconds``: what its runs take, in turn. ``fail`` happens when it is asked to do ``at``."""
        self.name, self.diary, self.seconds, self.fail, self.at = name, Path(diary), list(seconds), fail, at
        self.shift = shift
        print("a library greets on standard output")
        if child:
            process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(child).write_text(str(process.pid))
        self.note("load")
        self.misbehave("load")

    def note(self, what):
        with self.diary.open("a") as file:
            file.write(f"{self.name} {what}\n")

    def misbehave(self, doing):
        if doing != self.at:
            return
        if self.fail == "die":
            print("out of paper", file=sys.stderr, flush=True)
            os._exit(3)
        if self.fail == "hang":
            time.sleep(600)
        if self.fail == "raise":
            raise ValueError("no such thing")
        if self.fail == "garbage":
            os.write(OUT, b"what?\n")

    def info(self):
        return {"version": "1", "kv_cache": "none", "context": "fake", "pid": os.getpid(), "env": dict(os.environ)}

    def run(self, prompts, output_lens, head, clock):
        self.note(f"run {len(prompts)}")
        self.misbehave("run")
        answers = [
            [(sum(prompt) + at) % 1000 for at in range(n)] for prompt, n in zip(prompts, output_lens, strict=True)
        ]
        if self.fail == "short" and self.at == "run":
            answers[-1] = answers[-1][:-1]
        if self.fail == "other tokens":
            answers = [[token if at % 2 else token + 1 for at, token in enumerate(answer)] for answer in answers]
        now = iter([100.0, 100.25, 100.0 + (self.seconds.pop(0) if self.seconds else 1.0)])
        clock._now = lambda: next(now)
        clock.start()
        clock.first()
        clock.first()
        clock.stop()
        return answers

    def logits(self, ids):
        self.note("logits")
        self.misbehave("logits")
        if self.fail == "no logits":
            return None
        logits = np.outer(np.arange(1.0, len(ids) + 1), [0.0, 1.0, 0.5])
        return logits + np.array([0.0, 0.0, self.shift])


if __name__ == "__main__":
    OUT = os.dup(1)
    assert Clock
    serve(Fake)
