"""Writes ``quantized_checkpoints/``: a tiny Llama quantized by public tools, as they wrote it, with the logits that the
public tools compute of it. Made with::

    python -m venv made && made/bin/pip install llmcompressor==0.14.0.1   # brings auto-round 0.15.1
    made/bin/python tests/data/make_quantized_checkpoints.py tests/data/quantized_checkpoints

auto-round 0.15.1 writes the formats of GPTQ and AWQ (weights rounded to nearest) and computes with them in its own
torch layers; llm-compressor 0.14.0.1 runs GPTQ and AWQ and writes compressed-tensors, which transformers computes with
by compressed-tensors 0.19.0.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

SHAPE = {
    "vocab_size": 32, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
IDS = [3, 14, 15, 9, 2, 6, 5, 30]
GROUP = 32


def floats(folder: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.half().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(SHAPE["vocab_size"])}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w1").save_pretrained(folder)


def with_auto_round(source: Path, out: Path, format: str, symmetric: bool) -> None:
    from auto_round import AutoRound

    made = AutoRound(str(source), bits=4, group_size=GROUP, sym=symmetric, iters=0, disable_opt_rtn=True,
                     device_map="cpu")  # fmt: skip
    made.quantize_and_save(str(out), format=format)


def with_llm_compressor(source: Path, out: Path, recipe: object) -> None:
    from llmcompressor import oneshot

    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, SHAPE["vocab_size"], (32, 24), generator=generator).tolist()
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * 24] * 32})
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    oneshot(model=model, processor=tokenizer, dataset=data, recipe=recipe, max_seq_length=24,
            num_calibration_samples=32)  # fmt: skip
    model.save_pretrained(out, save_compressed=True)


def recipes() -> dict[str, object]:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor.modifiers.quantization import GPTQModifier

    try:
        from llmcompressor.modifiers.transform.awq import AWQModifier
    except ImportError:
        from llmcompressor.modifiers.awq import AWQModifier

    def groups(**options: object) -> dict[str, object]:
        weights = QuantizationArgs(num_bits=4, strategy="group", group_size=GROUP, **options)
        return {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}

    common = {"ignore": ["lm_head"]}
    return {
        "compressed-gptq": GPTQModifier(config_groups=groups(symmetric=True, actorder="weight"), **common),
        "compressed-awq": AWQModifier(config_groups=groups(symmetric=False), duo_scaling=True, **common),
    }


@torch.inference_mode()
def logits(folder: Path, **options: object) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    return model(torch.tensor([IDS])).logits[0].float().contiguous()


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    told: dict[str, object] = {
        name: version(name) for name in ("torch", "transformers", "auto-round", "llmcompressor", "compressed-tensors")
    }
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "floats"
        floats(source)
        made = {}
        for name, format, symmetric in (
            ("gptq-symmetric", "auto_gptq", True), ("gptq", "auto_gptq", False), ("awq", "auto_awq", False),
        ):  # fmt: skip
            with_auto_round(source, Path(scratch) / name, format, symmetric)
            made[name] = next((Path(scratch) / name).rglob("config.json")).parent
        for name, recipe in recipes().items():
            with_llm_compressor(source, Path(scratch) / name, recipe)
            made[name] = Path(scratch) / name
        found = {name: logits(folder) for name, folder in made.items()}
        sums = {}
        for name, folder in made.items():
            (target / name).mkdir(exist_ok=True)
            for file in ("config.json", "model.safetensors"):
                shutil.copy(folder / file, target / name / file)
                sums[f"{name}/{file}"] = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        save_file(found, target / "logits.safetensors")
        exact = load_file(source / "model.safetensors")
        print({name: float(t.float().std()) for name, t in exact.items()})
    told |= {"ids": IDS, "sha256": sums}
    (target / "about.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
