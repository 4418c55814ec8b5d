"""Models of known families by their ``config.json``: those there are dummy weights for, and larger ones to count."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from workbench.errors import UsageError
from workbench.model.config import ModelConfig
from workbench.model.configs import shipped_config, shipped_names

_FOLDER = "data/configs"


def family_names() -> list[str]:
    """Names that `family_config` knows, sorted."""
    files = resources.files("workbench.lab").joinpath(_FOLDER).iterdir()
    return sorted({*shipped_names(), *(file.name.removesuffix(".json") for file in files)})


def family_config(name: str) -> dict[str, Any]:
    """The keys of a published ``config.json`` that give a model its shape. Raises UsageError listing the names."""
    if name in shipped_names():
        return shipped_config(name)
    if name not in family_names():
        raise UsageError(f"no config.json is kept for {name!r}; there are {', '.join(family_names())}")
    text = resources.files("workbench.lab").joinpath(_FOLDER, f"{name}.json").read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def family(name: str) -> ModelConfig:
    """The same, as the engine reads it."""
    return ModelConfig.from_dict(family_config(name), name)
