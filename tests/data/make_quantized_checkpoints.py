"""Writes ``quantized_checkpoints/``: a tiny Llama quantized by public tools, as they wrote it, with the logits that the
public tools compute of it. Made with::

    python -m venv made && made/bin/pip install llmcompressor==0.14.0.1   # brings auto-round 0.15.1
    made/bin/python tests/data/make_quantized_checkpoints.py tests/data/quantized_checkpoints

auto-round 0.15.1 writes the formats of GPTQ and AWQ (weights rounded to nearest) and has layers in torch that multiply
with them; llm-compressor 0.14.0.1 runs GPTQ and AWQ and writes compressed-tensors, which transformers computes with
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
    "vocab_size": 16, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
IDS = [3, 14, 15, 9, 2, 6, 5, 13]
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


def with_auto_round(source: Path, out: Path, format: str) -> None:
    from auto_round import AutoRound

    made = AutoRound(str(source), bits=4, group_size=GROUP, sym=False, iters=0, disable_opt_rtn=True,
                     device_map="cpu")  # fmt: skip
    made.quantize_and_save(str(out), format=format)


def with_llm_compressor(source: Path, out: Path, recipe: object) -> None:
    from llmcompressor import oneshot

    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, SHAPE["vocab_size"], (32, 24), generator=generator).tolist()
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * 24] * 32})
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    oneshot(model=model, processor=tokenizer, dataset=data, recipe=recipe, max_seq_length=24,
            num_calibration_samples=32)  # fmt: skip
    model.save_pretrained(out, save_compressed=True)


def recipes() -> dict[str, object]:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    def groups(**options: object) -> dict[str, object]:
        weights = QuantizationArgs(num_bits=4, strategy="group", group_size=GROUP, **options)
        return {"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}

    common = {"ignore": ["lm_head"]}
    return {
        "compressed-gptq": GPTQModifier(config_groups=groups(symmetric=True, actorder="weight"), **common),
        "compressed-awq": [AWQModifier(), QuantizationModifier(config_groups=groups(symmetric=False), **common)],
    }


def by_auto_round(folder: Path) -> dict[str, torch.Tensor]:
    """Weights as auto-round's own torch layers multiply with them; AWQ's unpacking is AutoAWQ's."""
    from auto_round.export.export_to_awq.utils import dequantize_gemm
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear

    held = load_file(folder / "model.safetensors")
    found = {name: t for name, t in held.items() if name.endswith("weight") and "qweight" not in name}
    for name, qweight in held.items():
        stem, _, end = name.rpartition(".")
        if end != "qweight":
            continue
        qzeros, scales = held[f"{stem}.qzeros"], held[f"{stem}.scales"]
        if json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"] == "awq":
            found[f"{stem}.weight"] = dequantize_gemm(qweight, qzeros, scales.float(), 4, GROUP).T
            continue
        inputs = len(qweight) * 8
        layer = QuantLinear(4, GROUP, inputs, qweight.shape[1], bias=False)
        layer.qweight, layer.qzeros, layer.scales = qweight, qzeros, scales.float()
        found[f"{stem}.weight"] = layer(torch.eye(inputs)).T
    return found


@torch.inference_mode()
def logits(source: Path, folder: Path) -> torch.Tensor:
    method = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]
    if method == "compressed-tensors":
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        weights = by_auto_round(folder)
        missing, unexpected = model.load_state_dict(weights, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return model.eval()(torch.tensor([IDS])).logits[0].float().contiguous()


def main(target: Path) -> None:
    if not torch.cuda.is_available():  # its AWQ pins memory even where no GPU is; pinned or not, numbers are the same
        torch.Tensor.pin_memory = lambda self, *_: self
    target.mkdir(parents=True, exist_ok=True)
    told: dict[str, object] = {
        name: version(name) for name in ("torch", "transformers", "auto-round", "llmcompressor", "compressed-tensors")
    }
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "floats"
        floats(source)
        made = {}
        for name, recipe in recipes().items():
            with_llm_compressor(source, Path(scratch) / name, recipe)
            made[name] = Path(scratch) / name
        for name in ("gptq", "awq"):
            with_auto_round(source, Path(scratch) / name, f"auto_{name}")
            made[name] = next((Path(scratch) / name).rglob("config.json")).parent
        found = {name: logits(source, folder) for name, folder in made.items()}
        sums = {}
        for name, folder in made.items():
            (target / name).mkdir(exist_ok=True)
            for file in ("config.json", "model.safetensors"):
                shutil.copy(folder / file, target / name / file)
                sums[f"{name}/{file}"] = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        save_file(found, target / "logits.safetensors")
    told |= {"ids": IDS, "sha256": sums}
    (target / "about.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
