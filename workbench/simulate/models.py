"""The shape of a model by name: simulating needs its config.json and no weights."""

from __future__ import annotations

from pathlib import Path

from workbench.errors import UsageError
from workbench.model import store
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config, shipped_names
from workbench.model.gguf import read_config


def model_shape(name: str) -> ModelConfig:
    """A shipped name, a ``config.json`` or the folder that holds one, a ``.gguf`` file, or a hub id that is here.

    Raises UsageError with the list of names for anything else, WorkbenchError for what is damaged or not here.
    """
    if name in shipped_names():
        return ModelConfig.from_dict(shipped_config(name), name)
    path = Path(name).expanduser()
    if path.suffix == ".json" and path.is_file():
        return ModelConfig.from_path(path)
    if not path.exists() and "/" not in name:
        raise UsageError(
            f"model {name!r} is not known: choose from {', '.join(shipped_names())}, or give a config.json, a model "
            "folder or a .gguf file"
        )
    found = store.locate(name)
    return ModelConfig.from_path(found) if found.is_dir() else ModelConfig.from_dict(read_config(found), str(found))
