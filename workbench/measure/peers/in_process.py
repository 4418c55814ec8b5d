"""transformers' own model with the weights that our loader reads, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from workbench.errors import WorkbenchError
from workbench.measure.peers.workers.transformers_serving import without_stops
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config
from workbench.model.weights import load_weights


def hf_config(source: Path | str) -> dict[str, Any]:
    """The Hugging Face configuration of a folder, a GGUF file or a shipped name, as a dict."""
    path = Path(source)
    if path.is_file():
        from workbench.model.gguf.hf_config import read_config

        return dict(read_config(path))
    if path.is_dir():
        from transformers import PretrainedConfig

        return dict(PretrainedConfig.get_config_dict(path)[0])
    return dict(shipped_config(str(source)))


def transformers_model(
    source: Path | str, load_format: str, dtype: torch.dtype, device: torch.device, seed: int
) -> Any:
    """The same model as transformers builds it, with the weights that our own loader reads."""
    from transformers import AutoConfig, AutoModelForCausalLM

    wanted = {name: value for name, value in hf_config(source).items() if name not in ("dtype", "torch_dtype")}
    config = AutoConfig.for_model(**wanted)
    config.dtype = dtype
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
    model_config = ModelConfig.from_dict(hf_config(source))
    path = Path(source) if Path(source).exists() else None
    weights = load_weights(model_config, path, load_format, dtype, device, seed)
    model.to_empty(device=device)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    left = [name for name in missing if name != "lm_head.weight" or not model_config.tie_word_embeddings]
    if left or unexpected:
        raise WorkbenchError(
            f"transformers builds another model: missing {left[:4]}, unexpected {list(unexpected)[:4]}"
        )
    # Buffers (rotary frequencies) are not in a checkpoint: built again by a model off the meta device.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    return without_stops(model)
