"""Our folder `kernels` has the name of a distribution that transformers looks for: it must not take ours for it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ASK = """
import json
from transformers.utils import import_utils
import kernels
answer = {
    "available": import_utils.is_kernels_available(),
    "ours": kernels.__file__,
}
print(json.dumps(answer))
"""

BUILD = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations import hub_kernels
assert not hub_kernels.is_kernels_available()
sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
assert LlamaForCausalLM(LlamaConfig(**sizes)).eval()(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 32)
"""


def hub_kernels_installed() -> bool:
    try:
        importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.parametrize("where", ["root", "elsewhere"])
def test_transformers_does_not_take_our_folder_for_its_kernels(where, tmp_path):
    if hub_kernels_installed():
        pytest.skip("the distribution `kernels` is installed in this environment, which this project never does")
    # A model is built where the folder is nearest: in the repository's root it is the first place Python looks.
    code = ASK + BUILD if where == "root" else ASK
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if where == "elsewhere":
        env["PYTHONPATH"] = str(ROOT)  # found from elsewhere too, installed or not
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT if where == "root" else tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[0])
    assert answer["available"] is False
    assert Path(answer["ours"]).is_relative_to(ROOT / "kernels")


def test_our_distribution_can_never_be_mistaken_for_it():
    """transformers asks which distribution brings the folder `kernels`, and takes that one's version: ours must stay
    outside the range it accepts (by 5.24: 0.18.2 up to 0.19)."""
    import tomllib

    from packaging.version import Version
    from transformers.utils import import_utils

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] != "kernels"
    ours = Version(project["version"])
    low, high = Version(import_utils.KERNELS_MIN_VERSION), Version(import_utils.KERNELS_MAX_VERSION)
    assert not low <= ours < high
