"""The CPU path over a long time and a long context: no slower after a million tokens, 8k tokens, memory as promised."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
import torch

from tests.conftest import Proof
from tests.proof.conftest import open_smollm2
from tests.tiny_llm import open_llm
from workbench import LLM, SamplingParams
from workbench.model.divergence import kl_divergence
from workbench.text.default_text import DEFAULT_TEXT

pytestmark = pytest.mark.proof

MILLION = 1_000_000
MEMORY = """
import json, sys
from workbench import LLM, SamplingParams
import workbench.model.decoder, tokenizers, torch
torch.randn(64, 64) @ torch.randn(64, 64)
def held():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))
before = held()
llm = LLM(quantization=sys.argv[1], max_model_len=8192, num_kv_blocks=1000)
prompts = [[(7 * i + j) % 40000 + 1000 for i in range(400)] for j in range(32)]
llm.generate(prompts, SamplingParams(temperature=0, max_tokens=32, ignore_eos=True), use_tqdm=False)
told = sum(llm.runner.decoder.weight_bytes) + llm.runner.cache.storage.nbytes
print(json.dumps({"told": told, "grown": held() - before}))
"""


@pytest.mark.timeout(1800)
def test_no_slower_after_a_million_tokens(folder: Path, proof: Proof) -> None:
    """A tiny model, so that what is timed is the engine: the last tenth of the steps against the second."""
    llm = open_llm(folder, max_num_seqs=64, num_kv_blocks=2048)
    durations: list[float] = []
    tokens = 0

    def note(trace: object) -> None:
        nonlocal tokens
        tokens += len(trace.new_tokens)  # type: ignore[attr-defined]
        durations.append(trace.duration)  # type: ignore[attr-defined]

    llm.engine.listeners.append(note)
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    round_ = 0
    while tokens < MILLION:
        llm.generate([[(round_ + i) % 90 + 1, i + 1] for i in range(64)], params, use_tqdm=False)
        round_ += 1
    tenth = len(durations) // 10
    early, late = median(durations[tenth : 2 * tenth]), median(durations[-tenth:])
    proof.report(
        "no slower after a million tokens",
        f"{tokens:,} tokens, {1e3 * early:.2f} ms a step early, {1e3 * late:.2f} late",
    )
    llm.engine.pool.check()
    assert late < 1.25 * early


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", ["none", "gguf"])
def test_eight_thousand_tokens(scheme: str, proof: Proof) -> None:
    """A prompt as long as the model allows, whole and in chunks: the same answer."""
    llm = open_smollm2(quantization=scheme, max_model_len=8192, num_kv_blocks=530)
    assert llm.tokenizer is not None
    ids = (llm.tokenizer.encode(DEFAULT_TEXT) * 20)[: 8192 - 16]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    whole = llm.generate([ids], params, use_tqdm=False)[0]
    chunked = LLM(weights_of=llm, max_num_batched_tokens=512, max_model_len=8192, num_kv_blocks=530)
    again = chunked.generate([ids], params, use_tqdm=False)[0]
    proof.report(
        f"8,176 tokens of prompt, {scheme}", f"ttft {whole.metrics.ttft:.1f} s, in chunks {again.metrics.ttft:.1f} s"
    )
    assert whole.token_ids == again.token_ids


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["none", "w8a16", "w4a16", "gguf"])
def test_memory_is_weights_and_kv(scheme: str, proof: Proof) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, scheme], capture_output=True, text=True, timeout=800, check=True
    )
    found = json.loads(done.stdout)
    share = found["grown"] / found["told"]
    proof.report(
        f"memory that weights, KV and serving took, {scheme}", f"{share:.2f} × weights + KV of {found['told']:,} bytes"
    )
    assert share < 1.15


@pytest.mark.timeout(900)
def test_what_each_format_loses(proof: Proof) -> None:
    """KL(float32 ‖ format) on the default text, in nats a token."""
    exact = open_smollm2()
    assert exact.tokenizer is not None
    ids = exact.tokenizer.encode(DEFAULT_TEXT)[:512]
    reference = exact.runner.logits(ids)
    losses = {}
    for scheme in ("gguf", "w4a16", "w8a16", "w8a8-int8", "w4a8"):
        llm = open_smollm2(quantization=scheme)
        losses[scheme] = kl_divergence(reference, llm.runner.logits(ids))
    half = open_smollm2(kv_cache_dtype="fp16")
    losses["fp16 KV"] = kl_divergence(reference, half.runner.logits(ids))
    proof.report("KL against float32", ", ".join(f"{name} {loss:.1e}" for name, loss in losses.items()))
    assert losses["gguf"] < 1e-5 and losses["fp16 KV"] < 1e-5 and losses["w8a16"] < 2e-3 < losses["w8a8-int8"]
    assert torch.isfinite(reference).all()
