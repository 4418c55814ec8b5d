"""How large a run is: the real one on a GPU, a quick one, or a rehearsal on a CPU where kernels are interpreted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scale:
    device: str = "cuda"
    """``cuda`` or ``cpu``"""
    tiny: bool = False
    """A rehearsal: smallest shapes, whose times are worth nothing."""
    quick: bool = False
    """Fewer shapes, a third of the time."""
    notebooks: tuple[str, ...] = ()
    """Files of those that are run."""

    def pick(self, full: T, tiny: T, quick: T | None = None) -> T:
        if self.tiny:
            return tiny
        return quick if self.quick and quick is not None else full

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
