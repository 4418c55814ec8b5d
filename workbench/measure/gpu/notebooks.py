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
from workbench.measure.gpu.models import TINY, add_tokenizer, folder
from workbench.measure.gpu.report import Report
from workbench.measure.gpu.scale import Scale
from workbench.model.config import ModelConfig
from workbench.model.weights.dummy import dummy_weights

MODEL = "smollm2-135m"


def notebooks(scale: Scale, report: Report, name: str) -> None:
    """One after the other, for two at once would be timed wrongly. Rows ``{notebook, ok, seconds, tier, values, cells,
    error}``: ``values`` as a lesson gives them."""
    with tempfile.TemporaryDirectory() as scratch:
        model = with_weights(Path(scratch), scale)
        environment = os.environ | {"WORKBENCH_MODEL": str(model), "WORKBENCH_PROGRESS": f"{scratch}/progress.json"}
        if scale.device == "cuda":
            environment.pop("TRITON_INTERPRET", None)
        for file in scale.notebooks:
            if not report.begin(Path(file).name):
                continue
            begin, answer = time.perf_counter(), Path(scratch, f"{Path(file).stem}.json")
            command = [sys.executable, "-m", "workbench.lab.run", file, "--device", scale.device, "--json", str(answer),
                       "--tier", scale.pick("gpu", "tiny")]  # fmt: skip
            subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
            seconds = time.perf_counter() - begin
            report.row(notebook=Path(file).name, seconds=seconds, **_found(answer, Path(file).name))


def with_weights(at: Path, scale: Scale) -> Path:
    """A folder with random weights of the course's model and a tokenizer, which lessons open as they open any."""
    from safetensors.torch import save_file

    made = folder(at, MODEL, **(TINY if scale.tiny else {}))
    add_tokenizer(made)
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
