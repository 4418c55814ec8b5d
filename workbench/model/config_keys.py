"""Values of a ``config.json`` by key, each checked: whoever wrote the file, what is read is of the right kind and size.

Absent and ``null`` mean the same, as in transformers. Every error is one line that names the file, the key, the value
and what it must be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.checks import as_real, as_token_ids, as_whole, shown
from workbench.errors import WorkbenchError

MAX_SIZE = 2**31 - 1
"""The most that any length or width may be."""


class Keys:
    """The keys of one object in the file. Methods take names in order of precedence; the first that is there counts."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        """``source``: the file, for errors; ``prefix``: the way to this object in it, such as ``text_config.``."""
        self._values = values
        self._source = source
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there without a value."""
        return key in self._values and self._values[key] is None

    def whole(self, *keys: str, default: int | None = None, least: int = 1, most: int = MAX_SIZE) -> Any:
        """A whole number from ``least`` to ``most``, an int; ``default`` where there is none."""
        key, value = self._first(keys)
        if value is None:
            return default
        number = as_whole(value)
        if number is None or not least <= number <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return number

    def needed(self, *keys: str, most: int = MAX_SIZE) -> int:
        """A whole number from 1 that must be there."""
        found: int | None = self.whole(*keys, most=most)
        if found is None:
            raise WorkbenchError(
                f"{self._source} has no {self._prefix + keys[0]!r}: it describes no decoder that can be read here"
            )
        return found

    def number(self, *keys: str, default: float, most: float, zero: bool = False) -> float:
        """A number above 0 (or, with ``zero``, from 0) and at most ``most``; ``default`` where there is none."""
        key, value = self._first(keys)
        if value is None:
            return default
        number = as_real(value)
        if number is None or math.isnan(number) or not (0 < number <= most or (zero and number == 0)):
            raise self.wrong(key, f"a number {'from 0' if zero else 'above 0'} and at most {most:g}")
        return number

    def flag(self, *keys: str, default: bool) -> bool:
        key, value = self._first(keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, *keys: str, default: str) -> str:
        key, value = self._first(keys)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "text that is not empty")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty where there is none."""
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(key, "a list of texts")
        return value

    def numbers(self, key: str) -> list[int]:
        """A list of whole numbers from 0; empty where there is none."""
        value = self._values.get(key)
        listed = [] if value is None else [as_whole(one) for one in value] if isinstance(value, list) else [None]
        found = [one for one in listed if one is not None and one >= 0]
        if len(found) != len(listed):
            raise self.wrong(key, "a list of whole numbers from 0")
        return found

    def token_ids(self, key: str) -> tuple[int, ...]:
        """A token id or a list of them; empty where there is none (some files write −1)."""
        found = as_token_ids(self._values.get(key))
        if found is None:
            raise self.wrong(key, "a token id or a list of token ids")
        return found

    def table(self, *keys: str) -> Keys:
        """The object under the first key that is there; one without keys where there is none."""
        key, value = self._first(keys)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Keys(value or {}, self._source, f"{self._prefix}{key}.")

    def tables(self) -> list[str]:
        """The keys, if every value is an object or null; else none."""
        objects = all(value is None or isinstance(value, dict) for value in self._values.values())
        return [key for key, value in self._values.items() if value] if objects else []

    def wrong(self, key: str, limit: str) -> WorkbenchError:
        """The error for the value of ``key``, which is not what ``limit`` says."""
        value = self._values.get(key)
        told = "null" if value is None else shown(value)
        return WorkbenchError(f"{self._source}: {self._prefix}{key}={told} must be {limit}; mend it or fetch it again")

    def _first(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        return next(((key, self._values[key]) for key in keys if key in self), (keys[0], None))
