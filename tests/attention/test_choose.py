"""Who is taken where, and why: the table, the one logic over it, and what is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.attention import stand_ins
from workbench.attention import choose as logic
from workbench.attention import registry
from workbench.attention.choose import Choice, Needs, choose, judge, refusal
from workbench.attention.interface import Heads
from workbench.attention.peers import PEERS, VLLM_NAMES
from workbench.attention.registry import ADAPTERS, BACKENDS, WHY_NOT, chosen_backend
from workbench.attention.table import CANDIDATES, ORDERS, UNTRIED, architecture
from workbench.config import EngineConfig
from workbench.errors import UsageError

H100 = Needs("cuda", (9, 0), 32, 8, 128, "bfloat16", "bfloat16")
B200, RTX5090, L4, A100 = (replace(H100, capability=number) for number in ((10, 0), (12, 0), (8, 9), (8, 0)))
V100 = replace(H100, capability=(7, 0), dtype="float16", cache_dtype="float16")
CPU = replace(H100, device="cpu", capability=None, dtype="float32", cache_dtype="float32")
DEEPSEEK = replace(H100, latent=(512, 64), block_size=64)
EVERY = tuple(CANDIDATES)
WITHOUT = {name: replace(one, tested="hardware") for name, one in CANDIDATES.items()}


def serves(name: str) -> str:
    return ""


def auto(needs: Needs, *installed: str) -> str:
    return choose(needs, "auto", serves, installed).name


def test_the_names_are_those_of_the_interface() -> None:
    spec = EngineConfig.__dataclass_fields__["attention_backend"]
    assert set(spec.metadata["choices"]) == {"auto", *CANDIDATES} == {"auto", *BACKENDS, *ADAPTERS}
    assert not spec.metadata.get("unbuilt") and set(WHY_NOT) <= set(BACKENDS)
    with pytest.raises(UsageError, match="attention_backend='flashmlb' is not known; choose from auto, "):
        EngineConfig(attention_backend="flashmlb")


def test_architectures() -> None:
    known = {(7, 5): "an older GPU", (8, 0): "Ampere", (8, 6): "Ampere", (8, 9): "Ada", (9, 0): "Hopper"}
    known |= {(10, 3): "Blackwell", (12, 1): "consumer Blackwell", (13, 0): "Blackwell", None: "an older GPU"}
    assert {number: architecture("cuda", number) for number in known} == known
    assert architecture("cpu", None) == "CPU" and set(known.values()) | {"CPU"} == set(ORDERS)
    for order in ORDERS.values():
        assert order.names[-1] == order.latent[-1] == "torch_native" and set(order.names) <= set(CANDIDATES)
        assert len(set(order.names)) == len(order.names)


@pytest.mark.parametrize(
    ("needs", "expected"),
    [(H100, "triton"), (B200, "triton"), (RTX5090, "triton"), (L4, "triton"), (A100, "triton"), (V100, "sdpa"),
     (CPU, "cpu"), (DEEPSEEK, "triton"), (replace(CPU, latent=(512, 64)), "torch_native"),
     (replace(H100, head_dim=512), "sdpa"), (replace(CPU, batch_invariant=True), "cpu")],
)  # fmt: skip
def test_auto_with_every_library_installed_takes_what_was_tested(needs: Needs, expected: str) -> None:
    assert auto(needs, *EVERY) == expected


def test_auto_without_triton_takes_sdpa() -> None:
    assert choose(H100, "auto", lambda name: "no" if name == "triton" else "").name == "sdpa"


@pytest.mark.parametrize(
    ("needs", "installed", "expected"),
    [(H100, EVERY, "fa3"), (H100, ("triton", "flashinfer"), "flashinfer"), (B200, EVERY, "flashinfer"),
     (RTX5090, EVERY, "flashinfer"), (replace(RTX5090, latent=(512, 64), block_size=64), EVERY, "triton"),
     (L4, EVERY, "flashinfer"), (A100, EVERY, "flashinfer"), (replace(A100, head_dim=80), EVERY, "triton"),
     (replace(A100, head_dim=80, block_size=256), EVERY, "flash_attn"),
     (replace(H100, head_dim=100), EVERY, "triton"), (replace(CPU, device="cuda", capability=(9, 0)), EVERY, "triton"),
     (DEEPSEEK, EVERY, "flashmla"), (replace(DEEPSEEK, block_size=16), EVERY, "triton"),
     (replace(DEEPSEEK, capability=(8, 0)), EVERY, "triton"),
     (replace(DEEPSEEK, latent=(256, 64)), EVERY, "triton"),
     (replace(H100, batch_invariant=True), EVERY, "triton"),
     (replace(H100, batch_invariant=True, head_dim=300), EVERY, "torch_native"), (V100, EVERY, "sdpa")],
)  # fmt: skip
def test_the_order_once_adapters_have_run_on_hardware(
    monkeypatch: pytest.MonkeyPatch, needs: Needs, installed: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr(logic, "CANDIDATES", WITHOUT)
    assert auto(needs, *installed) == expected


REFUSED: list[tuple[str, Needs, str]] = [
    ("cpu", H100, "it runs on CPUs and the model is on cuda"),
    ("fa3", CPU, "it runs on GPUs and the model is on cpu"),
    ("fa3", A100, "a GPU of compute capability 8.0, and it takes 9.x only"),
    ("fa3", B200, "a GPU of compute capability 10.0, and it takes 9.x only"),
    ("flash_attn", A100, "block_size=16, and it takes pages of a multiple of 256 tokens"),
    ("flash_attn", replace(A100, head_dim=100, block_size=256), "head_dim=100, and it takes multiples of 8 up to 256"),
    ("flash_attn", replace(A100, dtype="float32"), "queries are float32, and it takes float16, bfloat16"),
    ("flashinfer", replace(A100, head_dim=80), "head_dim=80, and it takes 64, 128, 256"),
    ("flashinfer", replace(A100, cache_dtype="float16"), "queries are bfloat16 and the cache float16, and it takes"),
    ("flashinfer", DEEPSEEK, "the model has latent attention (MLA), which it does not compute"),
    ("flashmla", H100, "latent attention (MLA) of widths (512, 64) only, and the model has no latent attention"),
    ("flashmla", replace(DEEPSEEK, latent=(256, 32)), "and the model has widths (256, 32)"),
    ("flashmla", replace(DEEPSEEK, block_size=128), "block_size=128, and it takes pages of 64 tokens only"),
    ("triton", replace(H100, head_dim=300), "head_dim=300, and it takes 1 up to 256"),
    ("triton", replace(H100, capability=(7, 5)), "a GPU of compute capability 7.5, and it takes 8.0 and newer"),
    ("sdpa", replace(H100, batch_invariant=True), "batch_invariant=True: its bits depend on what else is in the batch"),
    (
        "fa3",
        replace(H100, cache_dtype="float32"),
        "queries are bfloat16 and the cache float32, and it takes them alike",
    ),
]


@pytest.mark.parametrize(("name", "needs", "reason"), REFUSED)
def test_refusals_name_the_value_and_the_limit(name: str, needs: Needs, reason: str) -> None:
    assert reason in refusal(CANDIDATES[name], needs, EVERY)
    with pytest.raises(UsageError, match=f"attention_backend='{name}' cannot serve this model: .*; use '.*' or 'auto'"):
        choose(needs, name, serves, EVERY)


@pytest.mark.parametrize("name", ADAPTERS)
def test_absent_libraries_are_refused_with_the_install_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    needs = {"flashmla": DEEPSEEK}.get(name, replace(H100, block_size=256))
    with pytest.raises(UsageError, match=f"{name!r} cannot serve this model: not installed: ") as refused:
        choose(needs, name, serves)
    assert CANDIDATES[name].install in str(refused.value)
    stand_ins.install(monkeypatch, name)
    told = f"attention_backend={name!r}; its adapter has never yet run on hardware"
    assert choose(needs, name, serves) == Choice(name, told)


def test_who_converts_what_it_gathers_takes_a_cache_of_another_type() -> None:
    halves = replace(H100, cache_dtype="float16")
    assert {name for name in ORDERS["Hopper"].names if not refusal(CANDIDATES[name], halves, EVERY)} == {
        "triton", "sdpa", "torch_native",
    }  # fmt: skip
    assert not refusal(CANDIDATES["xformers"], halves, EVERY)


def test_why_in_words() -> None:
    assert choose(CPU, "sdpa", serves).why == "attention_backend='sdpa'"
    assert choose(CPU, "auto", serves).why.startswith("first choice on a CPU: a kernel that gathers nothing")
    why = choose(H100, "auto", serves, ("triton", "flashinfer")).why
    assert why.startswith(
        "the best on Hopper (compute capability 9.0) that can serve; not fa3: not installed: git clone"
    )
    assert "; not flashinfer: it could serve, but its adapter has never yet run on hardware: only --attention-" in why
    assert "not cpu: no compiler" in choose(CPU, "auto", lambda name: "no compiler" if name == "cpu" else "").why


def test_why_in_words_for_latents() -> None:
    """Nothing is said of backends that do not compute them."""
    first = choose(replace(DEEPSEEK, capability=(8, 0)), "auto", serves, EVERY).why
    assert first.startswith("first choice on Ampere (compute capability 8.0): our Triton kernel reads latents where")
    second = choose(DEEPSEEK, "auto", serves, ("triton",)).why
    assert second.startswith("the best on Hopper (compute capability 9.0) that can serve; not flashmla: not installed")
    for order in ORDERS.values():
        assert not any(name in order.latent_because for name in ("FlashInfer", "FlashAttention"))
        assert ("Triton" in order.latent_because) == ("triton" in order.latent)


def test_only_those_are_asked_that_count() -> None:
    asked: list[str] = []

    def ask(name: str) -> str:
        asked.append(name)
        return ""

    choose(CPU, "auto", ask)
    choose(CPU, "sdpa", ask)
    choose(H100, "auto", ask, EVERY)
    assert asked == ["cpu", "sdpa", "fa3", "flashinfer", "triton"]


@pytest.mark.parametrize("needs", [H100, B200, RTX5090, L4, A100, V100, CPU, DEEPSEEK])
def test_every_candidate_gets_one_verdict_and_the_engine_the_same(needs: Needs) -> None:
    for installed in ((), ("triton", "flashinfer", "fa3"), EVERY):
        verdicts = judge(needs, serves, installed)
        assert sorted(one.name for one in verdicts) == sorted(CANDIDATES) and all(one.reason for one in verdicts)
        [chosen] = [one.name for one in verdicts if one.verdict == "chosen"]
        assert chosen == choose(needs, "auto", serves, installed).name
        for one in verdicts:
            refused = bool(refusal(CANDIDATES[one.name], needs, installed))
            assert (one.verdict == "refused") == refused
            assert one.verdict != "passed over" or CANDIDATES[one.name].tested == UNTRIED


def test_what_peers_take_stands_for_every_architecture_of_the_table() -> None:
    for peer in PEERS:
        assert set(peer.attention) == set(peer.latent) == set(ORDERS) and peer.version and peer.source
        assert all(peer.attention.values())
    sglang, vllm = PEERS
    assert {name for orders in (vllm.attention, vllm.latent) for order in orders.values() for name in order} - {
        "TURBOQUANT"
    } <= set(VLLM_NAMES)
    assert set(vllm.attention["consumer Blackwell"]) == set(vllm.attention["Blackwell"])
    assert vllm.latent["consumer Blackwell"] == ("TRITON_MLA",) and not vllm.latent["CPU"]
    assert sglang.attention["Hopper"] == ("fa3",) and sglang.attention["Blackwell"] == ("trtllm_mha",)
    assert sglang.attention["Ampere"][0] == "flashinfer"
    assert vllm.attention["Hopper"][0] == "FLASH_ATTN" and vllm.attention["Blackwell"][0] == "FLASHINFER"


def test_a_gpu_of_this_machine_is_asked_for_its_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = Heads(32, 8, 128, torch.bfloat16, torch.device("cuda"), torch.bfloat16)
    compiled: dict[str, Any] = {"triton": lambda heads: ""}
    monkeypatch.setattr(registry, "WHY_NOT", compiled)
    monkeypatch.setattr(registry, "interpreted", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, expected in (((9, 0), "triton"), ((7, 0), "sdpa")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, number=capability: number)
        assert chosen_backend("auto", heads).name == expected
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(registry, "interpreted", lambda: True)
    assert "not triton: Triton's kernels are interpreted" in chosen_backend("auto", heads).why
    monkeypatch.setattr(registry, "interpreted", lambda: False)
    stand_ins.install(monkeypatch, "flashinfer")
    assert chosen_backend("flashinfer", heads).name == "flashinfer"
