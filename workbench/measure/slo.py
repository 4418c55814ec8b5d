"""A service level objective: how long a request may take, and which requests kept to it. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.errors import UsageError
from workbench.measure.served import Served


@dataclass(frozen=True, slots=True)
class Slo:
    """Most milliseconds of each; None: no limit. A request is good when it keeps to all of them."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    def met_by(self, request: Served) -> bool:
        """Whether a request completed within every limit. One output token has no TPOT and so cannot break it."""
        return request.completed and all(
            limit is None or value is None or value * 1e3 <= limit
            for limit, value in (
                (self.ttft, request.ttft),
                (self.tpot, request.tpot),
                (self.e2el, request.e2el),
            )
        )

    def to_dict(self) -> dict[str, float]:
        """The limits that there are."""
        pairs = {"ttft": self.ttft, "tpot": self.tpot, "e2el": self.e2el}
        return {name: limit for name, limit in pairs.items() if limit is not None}


def parse_slo(limits: Sequence[str]) -> Slo:
    """``["ttft:500", "tpot:50"]``, milliseconds, as vLLM's ``--goodput`` takes them."""
    found: dict[str, float] = {}
    for text in limits:
        name, _, value = text.partition(":")
        if name not in Slo.__slots__:
            raise UsageError(f"goodput {text!r}: there is a limit for ttft, tpot and e2el, such as ttft:500")
        if name in found:
            raise UsageError(f"goodput {text!r}: {name} has two limits; give one")
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"goodput {text!r}: {value!r} is no number of milliseconds, such as {name}:500") from None
        if not (found[name] > 0 and math.isfinite(found[name])):
            raise UsageError(f"goodput {text!r}: the limit must be more than 0 ms")
    if not found:
        raise UsageError("goodput without a limit: give at least one, such as ttft:500")
    return Slo(**found)
