"""The default model twice: in the engine, and as transformers' own decoder in float32 with the same weights."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

from workbench import LLM
from workbench.model import store
from workbench.model.gguf.hf_config import read_config
from workbench.model.weights import load_weights, read_model_config


def open_smollm2(**options: object) -> LLM:
    # Nothing cached: what is served twice is computed twice.
    sizes = {"block_size": 16, "num_kv_blocks": 256, "max_model_len": 1024, "enable_prefix_caching": False}
    return LLM(**{"model": "smollm2-135m", "device": "cpu", **sizes, **options})


@pytest.fixture(scope="session")
def smollm2() -> LLM:
    return open_smollm2()


@pytest.fixture(scope="session")
def smollm2_transformers() -> PreTrainedModel:
    """Rope, norms, attention and cache are all transformers'; the numbers come from the same file. That the file is
    read right is proved against the `gguf` package where the reader is tested."""
    path = store.locate("smollm2-135m")
    weights = load_weights(read_model_config(path), path, "auto", torch.float32)
    model = LlamaForCausalLM(LlamaConfig(**read_config(path))).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return model
