"""Settings of other engines that are not read here, and the option that says the same."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.attention.peers import VLLM_NAMES
from workbench.attention.table import CANDIDATES


def unread_settings(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable of vLLM's that is set and would choose a backend there. None of them changes anything
    here."""
    told = []
    if name := environment.get("VLLM_ATTENTION_BACKEND"):
        told.append(_attention(name))
    sampler = environment.get("VLLM_USE_FLASHINFER_SAMPLER")
    if sampler is not None:
        wanted = "torch" if sampler == "0" else "flashinfer"
        told.append(f"VLLM_USE_FLASHINFER_SAMPLER={sampler} is vLLM's and not read here: {_option('sampling', wanted)}")
    cores = environment.get("VLLM_FLASHINFER_FORCE_TENSOR_CORES")
    if cores is not None:
        told.append(
            f"VLLM_FLASHINFER_FORCE_TENSOR_CORES={cores} is vLLM's and not read here (vLLM 0.33 has no such setting "
            "either): leave it out; the flashinfer backend multiplies by tensor cores always"
        )
    return told


def _attention(name: str) -> str:
    known = VLLM_NAMES.get(name.upper().removesuffix("_VLLM_V1"), "")
    if name.lower() in CANDIDATES:
        known = known or name.lower()
    here = f"VLLM_ATTENTION_BACKEND={name} is vLLM's and not read here"
    if not known:
        return f"{here}, and no backend is like it: --attention-backend takes auto, {', '.join(CANDIDATES)}"
    if known in CANDIDATES:
        return f"{here}: {_option('attention', known)}"
    return f"{here}: use --attention-backend (attention_backend=…): {known}"


def _option(kind: str, value: str) -> str:
    return f"use --{kind}-backend {value} ({kind}_backend={value!r})"
