"""Classes of precision, FLOPs and limits against what the model's shape says."""

from __future__ import annotations

import pytest
import torch

from workbench.measure.peers import limits
from workbench.measure.peers.workloads import Job, jobs
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config
from workbench.model.cost import weights_read

CONFIG = ModelConfig.from_dict(shipped_config("smollm2-135m"))
WEIGHTS = weights_read(CONFIG, samples=True)
RATES = {"read_bandwidth": 20e9, "matmul_flops": 100e9}


@pytest.mark.parametrize(
    ("bits", "name"),
    [(32, "fp32"), (16, "16-bit"), (8.5, "8-bit"), (8.25, "8-bit"), (5.74, "4-bit"), (4.5, "4-bit"), (5, "4-bit")],
)
def test_classes(bits, name):
    assert limits.precision_class(round(WEIGHTS * bits / 8), CONFIG) == name


def test_flops_of_a_job_are_those_of_all_its_tokens():
    # A prompt of 3 with 2 answers: tokens at 0 … 2, then one at 3; two samples.
    job = Job("b", "", "output tok/s", [[1, 2, 3]], [2])
    head = 2 * CONFIG.hidden_size * CONFIG.vocab_size
    by_token = [CONFIG.flops_per_token(at + 1) - head for at in range(4)]
    assert limits.job_flops(job, CONFIG) == sum(by_token) + 2 * head


def test_limits():
    a, b, c, d = jobs("abcd", 100, 0)
    held = limits.of_limit(a, {"median": 20.0}, 4 * WEIGHTS, CONFIG, RATES)
    assert held["by"] == "read bandwidth" and held["limit"] == pytest.approx(20e9 / (4 * WEIGHTS))
    assert held["share"] == pytest.approx(20 * 4 * WEIGHTS / 20e9)
    for job, tokens in ((b, sum(b.output_lens)), (c, 2048)):
        held = limits.of_limit(job, {"median": 50.0}, 4 * WEIGHTS, CONFIG, RATES)
        assert held["limit"] == pytest.approx(tokens * 100e9 / limits.job_flops(job, CONFIG))
        assert held["share"] == pytest.approx(50 / held["limit"])
    assert limits.of_limit(d, {"median": 50.0}, 1, CONFIG, RATES) is None


def test_ceilings_are_measured_with_the_threads_asked_for(monkeypatch):
    seen = []
    monkeypatch.setattr(limits, "read_bandwidth", lambda device: seen.append(torch.get_num_threads()) or 1.0)
    monkeypatch.setattr(limits, "matmul_flops", lambda device, dtypes: {"float32": 2.0} if len(dtypes) == 1 else {})
    before = torch.get_num_threads()
    assert limits.ceilings(before + 1) == {"read_bandwidth": 1.0, "matmul_flops": 2.0}
    assert seen == [before + 1] and torch.get_num_threads() == before
    assert limits.better({"x": 1.0, "y": 4.0}, {"x": 3.0, "y": 2.0}) == {"x": 3.0, "y": 4.0}
