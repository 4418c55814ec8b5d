"""Is this JSON a step of a recorded run? Files get cut short and edited by hand; readers must be told where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.checks import as_real, as_whole, shown
from workbench.errors import WorkbenchError
from workbench.kv.caching_pool import PrefixStats

# A value is one of these kinds, a table of keys, or a list of such. A key with "?" may be absent; more keys do no harm.
_COUNT, _NUMBER, _TEXT, _FLAG = "a whole number from 0", "a finite number", "text", "true or false"
_KEYS = ("num_tokens", "num_computed_tokens")
_FIELDS: dict[str, Any] = {
    "step": _COUNT,
    "time": _NUMBER,
    "duration": _NUMBER,
    "scheduled": [{"request_id": _TEXT, **dict.fromkeys(_KEYS, _COUNT), "kind": _TEXT}],
    "skipped": [{"request_id": _TEXT, "reason": _TEXT}],
    "preempted": [_TEXT],
    "finished": [{"request_id": _TEXT, "reason": _TEXT}],
    "blocks": dict.fromkeys(("allocated", "freed", "shared", "evicted", "cached?", "free", "total"), _COUNT),
    "cached_tokens": _COUNT,
    "new_tokens": [{"request_id": _TEXT, "token_id": _COUNT}],
    "flops": _COUNT,
    "bytes": _COUNT,
    "phases": {},
    "num_waiting": _COUNT,
    "num_running": _COUNT,
    "inputs": [{}],
    "held": [_TEXT],
    "moved_bytes": _COUNT,
    "queried": {f"{name}?": _COUNT for name in PrefixStats._fields},
}
_ADDED = {
    "request_id": _TEXT, "arrival_time": _NUMBER, "priority?": _NUMBER, "prompt_token_ids?": [_COUNT], "params?": {},
    "fork_of?": _TEXT, "cache_salt?": _TEXT,
}  # fmt: skip
_EVENTS: dict[str, Any] = {"add": _ADDED, "abort": _TEXT, "refused": _ADDED, "more_may_come": _FLAG,
                           "reset_prefix_cache": _FLAG, "kv_fields": {}}  # fmt: skip


def check_trace(found: dict[str, Any], fields: Mapping[str, bool]) -> None:
    """Raises WorkbenchError that names the first field of a step that is missing, unknown or of another kind.

    ``fields``: every field of a step, and whether it must be there.
    """
    unknown = next((name for name in found if name not in fields), None)
    if unknown is not None:
        raise WorkbenchError(f"a step has no field {shown(unknown)}")
    absent = next((name for name, needed in fields.items() if needed and name not in found), None)
    if absent is not None:
        raise WorkbenchError(f"{absent} is missing")
    for name, value in found.items():
        if name in _FIELDS:
            _require(name, value, _FIELDS[name])
    if found.get("wake_time") is not None:
        _require("wake_time", found["wake_time"], _NUMBER)
    for name, seconds in found.get("phases", {}).items():
        _require(f"phases.{name}", seconds, _NUMBER)
    for place, event in enumerate(found.get("inputs", [])):
        _check_event(f"inputs[{place}]", event)


def _check_event(where: str, event: dict[str, Any]) -> None:
    kinds = [name for name in _EVENTS if name in event]
    if len(kinds) != 1:
        raise WorkbenchError(f"{where}={shown(event)} must be one of {', '.join(_EVENTS)}")
    kind = kinds[0]
    told = event[kind]
    _require(f"{where}.{kind}", told, _EVENTS[kind])
    if _EVENTS[kind] is _ADDED and "fork_of" not in told:
        absent = next((name for name in ("prompt_token_ids", "params") if name not in told), None)
        if absent is not None:
            raise WorkbenchError(f"{where}.{kind} lacks {absent}")


def _require(where: str, value: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        if not isinstance(value, list):
            raise WorkbenchError(f"{where}={shown(value)} must be a list")
        for place, item in enumerate(value):
            _require(f"{where}[{place}]", item, wanted[0])
    elif isinstance(wanted, dict):
        if not isinstance(value, dict):
            raise WorkbenchError(f"{where}={shown(value)} must be an object")
        for key, inner in wanted.items():
            name = key.removesuffix("?")
            if name in value:
                _require(f"{where}.{name}", value[name], inner)
            elif name == key:
                raise WorkbenchError(f"{where}.{name} is missing")
    elif not _fits(value, wanted):
        raise WorkbenchError(f"{where}={shown(value)} must be {wanted}")


def _fits(value: Any, wanted: str) -> bool:
    if wanted == _TEXT:
        return isinstance(value, str)
    if wanted == _FLAG:
        return isinstance(value, bool)
    if wanted == _COUNT:
        whole = as_whole(value)
        return whole is not None and whole >= 0
    real = as_real(value)
    return real is not None and math.isfinite(real)
