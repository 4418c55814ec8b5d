"""Shapes of public models, as published in their ``config.json``: enough for dummy weights and for sums, no download.

``mistral-7b`` is v0.1, the release with a sliding window of 4096 tokens. ``smollm2-135m`` is the instruct model.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from workbench.errors import UsageError


def shipped_names() -> list[str]:
    """Names that `shipped_config` knows, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def shipped_config(name: str) -> dict[str, Any]:
    """The parsed ``config.json`` of a shipped model. Raises UsageError listing the names if it is none of them."""
    if name not in shipped_names():
        raise UsageError(f"no configuration is shipped for {name!r}; there are {', '.join(shipped_names())}")
    text = resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed
