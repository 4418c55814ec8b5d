"""One step on tensors that say they are on ``cuda`` and hold nothing: a tensor left on the CPU then fails.

Run as ``python -m tests.model.fake_cuda [GUARD.so]``, in a process of its own, because the guard stays in torch. Prints
one JSON object: for the true code and for each seeded bug, None or the error.
"""

from __future__ import annotations

import copy
import ctypes
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from kernels.reference import attention as reference_attention
from kernels.reference import int4_tiles
from kernels.reference import sampling as reference_sampling
from kernels.reference.int4_tiles import Int4Tiles
from kernels.triton import launch
from tests.model.bare_runner import open_runner, request
from tests.model.fake_graphs import FakeCuda
from tests.model.fake_recorder import FixedShapes
from workbench.attention import sdpa
from workbench.attention.latent_shape import LatentAttention
from workbench.attention.registry import BACKENDS
from workbench.attention.table import CANDIDATES
from workbench.model import kv_cache, logprobs, penalties, rope, sampling, step_inputs
from workbench.model.architecture import RopeScaling
from workbench.model.batch import Batch
from workbench.model.captured import CapturedSteps
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config
from workbench.model.cuda_graphs import GraphRecorder
from workbench.model.runner import ModelRunner
from workbench.plan import Scheduled, StepPlan

CUDA = torch.device("cuda", 0)
ON_GPU = [name for name in BACKENDS if name not in ("cpu", "triton", "flex")]
"""Those made of torch's operations. A Triton kernel reads memory, and these tensors have none; FlexAttention would be
compiled."""
ON_DEVICE: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.3,
    "logit_bias": {3: 1.0, 7: -2.0},
    "min_tokens": 9,
}
"""The sampling options that change what is computed on the device."""
ON_HOST = {
    "n", "seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "max_tokens",
    "skip_special_tokens",
}  # fmt: skip
LOGPROBS = {"logprobs", "prompt_logprobs"}


def model_config() -> ModelConfig:
    """Small, with everything on that a supported decoder may have: biases, query and key norms, a window, scaling."""
    return replace(
        ModelConfig.from_dict(shipped_config("smollm2-135m")),
        num_layers=2,
        sliding_layers=(False, True),
        sliding_window=8,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        qk_norm="head",
        rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 64),
    )


def latent_config() -> ModelConfig:
    """With latent attention, and a plain MLP: how many tokens an expert has is looked at."""
    latent = LatentAttention(32, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, q_lora_rank=24)
    yarn = RopeScaling("yarn", 8.0, original_max_position_embeddings=64, mscale_all_dim=0.7)
    return replace(
        ModelConfig.from_dict(shipped_config("smollm2-135m")),
        model_type="deepseek_v2", num_layers=2, sliding_layers=(False, False), latent=latent, head_dim=20,
        num_kv_heads=9, rope_scaling=yarn,
    )  # fmt: skip


def plans() -> Iterator[StepPlan]:
    """A prefill, a decode and a step that mixes the two. Together they sample greedily and with every option."""
    greedy = {"temperature": 0.0}
    whole = [Scheduled(request(n, 0, **greedy), 0, n, "prefill", True) for n in (3, 17)]
    yield StepPlan([*whole, Scheduled(request(60, 0, **greedy), 0, 20, "prefill", False)])
    one_each: list[dict[str, Any]] = [greedy, {}, *({name: value} for name, value in ON_DEVICE.items())]
    # Contexts far apart, so that decodes form groups, and near each other, so that some are padded.
    answering = [request(8 * i * i + 3, 3, **options) for i, options in enumerate(one_each[:5])]
    answering += [request(30 + i, 3, **options) for i, options in enumerate(one_each[5:])]
    decodes = [Scheduled(one, one.num_tokens - 1, 1, "decode", True) for one in answering]
    yield StepPlan(decodes, copies=[(1, 40), (2, 41)])
    yield StepPlan([*decodes[:3], Scheduled(request(60, 0, **ON_DEVICE), 20, 40, "prefill", True)])


def run(backends: Iterable[str]) -> None:
    """Everything up to the tensor of chosen ids. Raises what torch raises."""
    # Not inference_mode: under it torch keeps the value of a tensor of one number and tries to bring it to the device.
    with FakeTensorMode(), torch.no_grad():
        served: list[tuple[ModelConfig, str, str | None]] = [(model_config(), backend, None) for backend in backends]
        served.append((model_config(), next(iter(backends)), "w4a16"))
        served += [(latent_config(), backend, None) for backend in backends if CANDIDATES[backend].latent_too]
        for config, backend, scheme in served:
            runner = open_runner(config, backend, CUDA, torch.float32, scheme)
            in_tiles = [isinstance(layer.mlp.down.parts[0], Int4Tiles) for layer in runner.decoder.layers]
            assert all(in_tiles) if scheme else not any(in_tiles)
            for plan in plans():
                if config.latent is None:
                    captured(runner, plan)
                _, logits = runner.forward(plan, runner.prepare(plan))
                sampling_requests = [item.request for item in plan.scheduled if item.samples]
                assert logits is not None and logits.shape == (len(sampling_requests), runner.decoder.config.vocab_size)
                chosen = sampling.sample(logits, sampling_requests)
                for name, tensor in (("logits", logits), ("chosen", chosen), ("cache", runner.cache.storage)):
                    assert tensor.device == CUDA, f"{name} came out on device {tensor.device}"
        assert CAPTURED, "no step was captured"
        try:
            logprobs.logprobs_of(logits, list(range(len(logits))), 5)
        except DataDependentOutputException:
            return  # Asked for values, as it must at its end: everything before that stayed on the device.
        raise AssertionError("logprobs_of never came to its end")


def captured(runner: ModelRunner, plan: StepPlan) -> None:
    """The plan as a captured step, if it is one: recorded, replayed, and filled up to a larger bucket."""
    other = ModelRunner(copy.copy(runner.decoder), runner.cache, runner.cost)
    other.decoder.attention = FixedShapes()
    # What a CUDA graph may not hold is refused, copies from the host above all.
    recorder = GraphRecorder(CUDA, FakeCuda())
    steps = CapturedSteps(other.decoder, other.cache, recorder, [2, 32], 256, one_result=True)
    if not steps.serves(plan):
        return
    steps.record_all()
    assert list(steps.recorded) == [32, 2]
    for _ in range(2):
        logits = steps.run(plan)
        assert logits.device == CUDA, f"captured logits came out on device {logits.device}"
    CAPTURED.append(len(plan.scheduled))


CAPTURED: list[int] = []
"""Sizes of the batches that were captured."""


class Forgetful:
    """Torch, but tensors are made without the device that was asked for."""

    def __getattr__(self, name: str) -> Any:
        made = getattr(torch, name)
        if name not in ("tensor", "arange", "zeros"):
            return made
        return lambda *args, device=None, **options: made(*args, **options)


def forgets_device(module: ModuleType) -> AbstractContextManager[Any]:
    return patch.object(module, "torch", Forgetful())


def changes_batch(change: Callable[[Batch], Batch]) -> AbstractContextManager[Any]:
    batch = ModelRunner._batch
    return patch.object(ModelRunner, "_batch", lambda self, *args: change(batch(self, *args)))


BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "token ids": lambda: changes_batch(lambda batch: replace(batch, token_ids=batch.token_ids.cpu())),
    "rope table": lambda: forgets_device(rope),
    "kv cache": lambda: forgets_device(kv_cache),
    "attention slots and masks": lambda: forgets_device(sdpa),
    "masks of latent attention": lambda: forgets_device(reference_attention),
    "penalties": lambda: forgets_device(penalties),
    "random numbers": lambda: forgets_device(reference_sampling),
    "captured step": lambda: forgets_device(step_inputs),
    "logprobs": lambda: forgets_device(logprobs),
    "groups of 4-bit weights": lambda: forgets_device(int4_tiles),
}
"""Each leaves what it names on the CPU."""


def outcome(seeded: AbstractContextManager[Any], backends: Iterable[str]) -> str | None:
    try:
        with seeded:
            run(backends)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def main() -> None:
    if len(sys.argv) > 1:
        ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
    with patch.object(launch, "suits", lambda x: False):  # no kernel can be launched on tensors that hold nothing
        found = {"true code": outcome(nullcontext(), ON_GPU)}
        for name, seeded in BUGS.items():
            found[name] = outcome(seeded(), ["torch_native" if "latent" in name else "sdpa"])
        print(json.dumps(found))


if __name__ == "__main__":
    main()
