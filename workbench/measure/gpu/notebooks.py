"""The notebooks that measure kernels, run without Jupyter (`workbench.lab.run`) on a model of random weights.

Answers of such a model mean nothing; times, bytes and registers do not depend on what the weights are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from workbench.measure.gpu.drive import ROOT
from workbench.measure.gpu.models import TINY, folder
from workbench.measure.gpu.report import Report
from workbench.measure.gpu.scale import Scale
from workbench.model.config import ModelConfig
from workbench.model.weights.dummy import dummy_weights

MODEL = "smollm2-135m"


def notebooks(scale: Scale, report: Report, name: str) -> None:
    """All at once. Rows ``{notebook, ok, seconds, values, cells, error}``: ``values`` as a lesson gives them."""
    with tempfile.TemporaryDirectory() as scratch:
        model = with_weights(Path(scratch), scale)
        environment = os.environ | {"WORKBENCH_MODEL": str(model), "WORKBENCH_PROGRESS": f"{scratch}/progress.json"}
        if scale.device == "cuda":
            environment.pop("TRITON_INTERPRET", None)
        begin, running = time.perf_counter(), {}
        for notebook in scale.notebooks:
            answer = Path(scratch, f"{Path(notebook).stem}.json")
            command = [
                sys.executable,
                "-m",
                "workbench.lab.run",
                notebook,
                "--device",
                scale.device,
                "--json",
                str(answer),
            ]
            command += ["--tier", scale.pick("gpu", "tiny")]
            running[notebook] = answer, subprocess.Popen(command, cwd=ROOT, env=environment, stdout=sys.stdout)
        while running:
            for notebook, (answer, process) in list(running.items()):
                if process.poll() is not None:
                    report.row(notebook=notebook, seconds=time.perf_counter() - begin, **_found(answer, notebook))
                    del running[notebook]
            time.sleep(0.1)


def with_weights(at: Path, scale: Scale) -> Path:
    """A folder with random weights of the course's model, which lessons open as they open any."""
    from safetensors.torch import save_file

    made = folder(at, MODEL, **(TINY if scale.tiny else {}))
    config = ModelConfig.from_dict(json.loads((made / "config.json").read_text(encoding="utf-8")))
    save_file(dict(dummy_weights(config, 0, torch.bfloat16)), str(made / "model.safetensors"))
    return made


def _found(answer: Path, notebook: str) -> dict[str, object]:
    if not answer.exists():
        return {"ok": False, "error": f"{notebook} ended without an answer; see the section's output"}
    found = json.loads(answer.read_text(encoding="utf-8"))
    bad = [cell for cell in found["cells"] if not cell["ok"]]
    row = {"ok": found["ok"], "tier": found["tier"], "values": found["values"], "cells": len(found["cells"])}
    if bad:
        row["error"] = f"{notebook}, {bad[0]['id']}: {bad[0]['error']['type']}: {bad[0]['error']['message']}"[:300]
    return row
