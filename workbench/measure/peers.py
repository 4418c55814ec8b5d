"""Peers: transformers serving the same requests with the same weights in the same process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from workbench.errors import WorkbenchError
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
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


NO_TOKEN = -1
"""An end-of-sequence id that no model samples."""


class TransformersPeer:
    """Static batching (``generate``) and paged continuous batching (``generate_batch``): greedy, no stop tokens."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def generate(self, prompts: list[list[int]], output_lens: list[int]) -> list[list[int]]:
        """One left-padded batch that runs until its longest answer is done; each answer is cut to what was asked."""
        width, device = max(map(len, prompts)), self.model.device
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=mask, max_new_tokens=max(output_lens), do_sample=False, use_cache=True
            )
        answers = out[:, width:].tolist()
        return [answer[:length] for answer, length in zip(answers, output_lens, strict=True)]

    def generate_batch(self, prompts: list[list[int]], output_lens: list[int]) -> list[list[int]]:
        """What ``generate_batch`` does, with an output length for each request, through paged sdpa attention."""
        from transformers import ContinuousBatchingConfig

        before = self.model.config._attn_implementation
        # A quarter of free memory for the cache, as this engine takes on a CPU.
        sizes = ContinuousBatchingConfig(max_memory_percent=0.25)
        generation = copy.deepcopy(self.model.generation_config)
        generation.eos_token_id = NO_TOKEN
        generation.do_sample = False
        try:
            with (
                torch.inference_mode(),
                self.model.continuous_batching_context_manager(generation, continuous_batching_config=sizes) as manager,
            ):
                names = [
                    manager.add_request(prompt, max_new_tokens=length, eos_token_id=NO_TOKEN)
                    for prompt, length in zip(prompts, output_lens, strict=True)
                ]
                answers: dict[str, list[int]] = {}
                while len(answers) < len(names):
                    result = manager.get_result(timeout=1)
                    if result is not None and result.is_finished():
                        answers[result.request_id] = list(result.generated_tokens)
                    elif result is None and not manager.is_running():
                        raise WorkbenchError("transformers' generate_batch stopped before it was done")
        finally:
            self.model.set_attn_implementation(before)
        return [answers[name] for name in names]
