"""The same weights in the forms that the peers read: a float32 Hugging Face folder, and GGUF files.

Whatever the model's file stores is what everybody gets: a quantized GGUF is dequantized once into float32, and that is
what float32, float16 and 8-bit forms are made of.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from workbench.errors import WorkbenchError
from workbench.gguf_file import GGUFFile
from workbench.measure.peers.environment import last_lines, peers_home

QUANTIZER = Path(__file__).parent / "workers" / "llama_quantize.py"


def made_folder(source: Path) -> Path:
    """Where what is made of this model lies: another file, or another size or date of it, has another folder."""
    stat = source.stat()
    told = f"{source.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    return peers_home() / "weights" / f"{source.stem}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def hf_folder(source: Path, say: Callable[[str], None]) -> Path:
    """A Hugging Face folder with the model's weights: the model's own, or one in float32 made of a GGUF file."""
    if source.is_dir():
        return source
    target = made_folder(source) / "hf"
    if (target / "config.json").is_file():
        return target
    say(f"writing {source.name} as a float32 Hugging Face folder")
    import torch
    from safetensors.torch import save_file

    from workbench.measure.peers.in_process import hf_config
    from workbench.model.config import ModelConfig
    from workbench.model.weights import load_weights

    config = hf_config(source)
    shape = ModelConfig.from_dict(config)
    weights = load_weights(shape, source, "auto", torch.float32, torch.device("cpu"), 0)
    if shape.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / "hf"
        made.mkdir()
        tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(tensors, made / "model.safetensors", {"format": "pt"})
        (made / "config.json").write_text(json.dumps(config | {"dtype": "float32"}, indent=2), encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(made, target)
    return target


def gguf_kind(source: Path) -> str:
    """The storage type that most of a GGUF file's bytes have, in small letters. Raises WorkbenchError for a folder."""
    if source.is_dir():
        raise WorkbenchError(f"{source.name} is a model folder: llama.cpp reads GGUF files; name one with --model")
    stored = GGUFFile(source).stored()
    return max(stored, key=lambda name: stored[name]["bytes"]).lower()


def gguf_as(source: Path, kind: str, python: Path, say: Callable[[str], None]) -> Path:
    """The model as a GGUF file of type ``kind``: its own file, or one that llama.cpp's quantizer makes of it with the
    Python that has llama-cpp-python. Raises WorkbenchError with the quantizer's last lines where it fails."""
    if gguf_kind(source) == kind:
        return source
    target = made_folder(source) / f"{kind}.gguf"
    if target.is_file():
        return target
    say(f"writing {source.name} as a GGUF file of {kind}")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_suffix(".part")
    command = [str(python), str(QUANTIZER), str(source), str(scratch), kind]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        scratch.unlink(missing_ok=True)
        raise WorkbenchError(f"llama.cpp cannot write {source.name} as {kind}: {last_lines(done.stderr)}")
    os.replace(scratch, target)
    return target


def gguf_bytes(path: Path, tied: bool) -> int:
    """Bytes of a GGUF file that computing a token reads: all weights, but of an embedding that is not also the head
    only a row."""
    file = GGUFFile(path)
    stored = sum(kind["bytes"] for kind in file.stored().values())
    table = file.tensors.get("token_embd.weight")
    return stored if tied or table is None else stored - table.num_bytes
