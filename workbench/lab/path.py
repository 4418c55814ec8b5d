"""Which path the engine takes on this machine, and why: kernels, attention, steps, weights, as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.lab.table import Table

if TYPE_CHECKING:
    from workbench.llm import LLM


def engine_path(llm: LLM) -> Table:
    """What computes the steps of ``llm`` here, in plain words."""
    return Table(
        ["what", "here", "why"], [_operations(llm), _attention(llm), _sampling(llm), _decode_steps(llm), _weights(llm)]
    )


def _operations(llm: LLM) -> list[str]:
    import kernels
    from kernels.cpu.build import build_name, cannot_run

    device = llm.runner.decoder.device.type
    if device != "cpu":
        ours = [op for op in kernels.operations() if device == "cuda" and "triton" in kernels.available(op)]
        if ours:
            return ["operations", "Triton kernels, else PyTorch", f"the model is on {device}: {', '.join(ours)}"]
        return ["operations", "plain PyTorch", f"the model is on {device}, and the C++ kernels are for CPUs"]
    if not llm.config.enable_kernel_fusion:
        return ["operations", "PyTorch, none fused", "enable_kernel_fusion=False; products as they are"]
    if reason := cannot_run():
        return ["operations", "plain PyTorch", f"the C++ kernels do not run: {reason}"]
    ours = [op for op in kernels.operations() if "cpu" in kernels.available(op)]
    return ["operations", f"C++ kernels, {build_name()} build", f"they were compiled here: {', '.join(ours)}"]


def _attention(llm: LLM) -> list[str]:
    return ["attention", llm.attention.name, llm.attention.why]


def _sampling(llm: LLM) -> list[str]:
    return ["sampling", {"reference": "plain PyTorch"}.get(llm.sampling.name, llm.sampling.name), llm.sampling.why]


def _decode_steps(llm: LLM) -> list[str]:
    from workbench.model.cuda_graphs import MIXTURE, cannot_capture

    attention = llm.runner.decoder.attention
    if llm.runner.captured is not None:
        steps, one = llm.runner.captured, "recorded once for each size of a batch, then replayed in one call"
        if llm.runner.decoder.device.type == "cuda":
            sizes = f"{len(steps.buckets)} sizes of batches up to {steps.buckets[-1]}"
            one = f"a CUDA graph for each of {sizes}, replayed as one launch"
        return ["a decode step", "captured", one]
    if llm.config.enforce_eager:
        why = "enforce_eager=True"
    elif not llm.config.enable_kernel_fusion:
        why = "enable_kernel_fusion=False: torch's operations cannot be recorded"
    elif not attention.capturable:
        why = f"attention by {attention.name} cannot be recorded"
    elif not llm.runner.decoder.capturable:
        why = MIXTURE
    elif llm.runner.decoder.device.type == "cpu":
        why = "only the C++ kernels can be recorded on a CPU"
    else:
        why = cannot_capture(llm.runner.decoder)
    return ["a decode step", "one call an operation", why]


def _weights(llm: LLM) -> list[str]:
    chosen = llm.quantization
    stored = sorted(set(chosen.formats.values())) or [llm.runner.decoder.embedding.format]
    return ["weights", ", ".join(stored), f"quantization: {chosen.name}; {chosen.why}"]
