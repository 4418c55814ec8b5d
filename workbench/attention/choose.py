"""Which backend ``auto`` takes, and why, in words: one logic for the engine and for ``workbench info attention``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple

from workbench.attention.table import CANDIDATES, NEVER_RUN, ORDERS, Candidate, architecture
from workbench.errors import UsageError

CHOSEN, ALSO, PASSED, REFUSED = "chosen", "also possible", "passed over", "refused"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model, its cache and a device ask of attention."""

    device: str
    """``cpu`` or ``cuda``."""
    capability: tuple[int, int] | None
    """Of a GPU; None on a CPU and where it is not known."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    cache_dtype: str
    block_size: int = 16
    latent: tuple[int, int] | None = None
    """(rank, rotated) widths of multi-head latent attention; None: keys and values are stored."""
    batch_invariant: bool = False

    @property
    def architecture(self) -> str:
        return architecture(self.device, self.capability)

    @property
    def card(self) -> str:
        """The device in words."""
        if self.device == "cpu":
            return "a CPU"
        number = "unknown" if self.capability is None else ".".join(map(str, self.capability))
        return f"{self.architecture} (compute capability {number})"


class Verdict(NamedTuple):
    name: str
    verdict: str
    """One of `CHOSEN`, `ALSO`, `PASSED`, `REFUSED`."""
    reason: str


class Choice(NamedTuple):
    """Who computes, and why, in words."""

    name: str
    why: str


Ask = Callable[[str], str]
"""Why a backend, by name, cannot serve on the machine itself; empty if it can. Asking may compile a kernel."""


def refusal(one: Candidate, needs: Needs, installed: Collection[str] = ()) -> str:
    """Why a candidate cannot serve, by the table and what is installed; empty if it can.

    ``installed``: backends taken as installed, wherever this runs.
    """
    if needs.device not in one.devices:
        place = {"cpu": "CPUs", "cuda": "GPUs"}[one.devices[0]]
        return f"it runs on {place} and the model is on {needs.device}"
    if needs.latent is not None and not one.latent_too and one.latent is None:
        return "the model has latent attention (MLA), which it does not compute"
    if one.latent is not None and needs.latent != one.latent:
        asked = "no latent attention" if needs.latent is None else f"widths {needs.latent}"
        return f"it computes latent attention (MLA) of widths {one.latent} only, and the model has {asked}"
    if needs.batch_invariant and not one.batch_invariant:
        return "batch_invariant=True: its bits depend on what else is in the batch"
    return _limits(one, needs) or absence(one, installed)


def _limits(one: Candidate, needs: Needs) -> str:
    if needs.capability is not None and needs.device == "cuda":
        number = ".".join(map(str, needs.capability))
        if one.majors and needs.capability[0] not in one.majors:
            majors = ", ".join(f"{major}.x" for major in one.majors)
            return f"a GPU of compute capability {number}, and it takes {majors} only"
        if needs.capability < one.least_capability:
            least = ".".join(map(str, one.least_capability))
            return f"a GPU of compute capability {number}, and it takes {least} and newer"
    if one.dtypes and needs.dtype not in one.dtypes:
        return f"queries are {needs.dtype}, and it takes {', '.join(one.dtypes)}"
    if one.cache_alike and needs.cache_dtype != needs.dtype:
        return f"queries are {needs.dtype} and the cache {needs.cache_dtype}, and it takes them alike"
    if one.latent is None:
        least, most = one.head_dim_multiple, one.most_head_dim
        if one.head_dims and needs.head_dim not in one.head_dims:
            return f"head_dim={needs.head_dim}, and it takes {', '.join(map(str, one.head_dims))}"
        if needs.head_dim % least or (most is not None and needs.head_dim > most):
            multiples = f"multiples of {least}" if least > 1 else "1"
            return f"head_dim={needs.head_dim}, and it takes {multiples} up to {most}"
    if one.page_size is not None and needs.block_size != one.page_size:
        return f"block_size={needs.block_size}, and it takes pages of {one.page_size} tokens only"
    if needs.block_size % one.page_multiple:
        return f"block_size={needs.block_size}, and it takes pages of a multiple of {one.page_multiple} tokens"
    return ""


def absence(one: Candidate, installed: Collection[str] = ()) -> str:
    """How to install what a candidate calls; empty if it is there."""
    found = not one.module or one.name in installed or find_spec(one.module) is not None
    return "" if found else f"not installed: {one.install}"


def choose(needs: Needs, name: str, ask: Ask, installed: Collection[str] = ()) -> Choice:
    """The backend of a name that `EngineConfig` has let through; ``auto``: the first in the order for the device that
    can serve. Raises UsageError for one asked for by name that cannot.

    Only those are asked on which the answer depends.
    """
    if name != "auto":
        reason = refusal(CANDIDATES[name], needs, installed) or ask(name)
        if reason:
            instead = "torch_native" if needs.latent is not None or needs.batch_invariant else "sdpa"
            raise UsageError(f"attention_backend={name!r} cannot serve this model: {reason}; use {instead!r} or 'auto'")
        told = f"attention_backend={name!r}"
        return Choice(name, f"{told}; its adapter has {NEVER_RUN}" if CANDIDATES[name].untried else told)
    *skipped, chosen = _walk(needs, ask, installed)
    return Choice(chosen.name, _why(needs, skipped, chosen))


def judge(needs: Needs, ask: Ask, installed: Collection[str] = ()) -> list[Verdict]:
    """Every candidate with its verdict: first those that ``auto`` goes through, in its order, then the others."""
    walked = _walk(needs, ask, installed)
    known = {verdict.name for verdict in walked}
    chosen = walked[-1].name
    found = list(walked)
    for name in (*_order(needs), *CANDIDATES):
        if name not in known:
            known.add(name)
            reason = refusal(CANDIDATES[name], needs, installed) or ask(name)
            found.append(Verdict(name, REFUSED, reason) if reason else _spare(name, needs, chosen))
    return found


def because(needs: Needs) -> str:
    """What the order for a device follows from, in words."""
    order = ORDERS[needs.architecture]
    return order.latent_because if needs.latent is not None else order.because


def _order(needs: Needs) -> tuple[str, ...]:
    order = ORDERS[needs.architecture]
    return order.latent if needs.latent is not None else order.names


def _walk(needs: Needs, ask: Ask, installed: Collection[str]) -> list[Verdict]:
    """Those of the order up to the one that serves, which is the last. The definition serves everything."""
    walked = []
    for name in _order(needs):
        one = CANDIDATES[name]
        if reason := refusal(one, needs, installed) or ask(name):
            walked.append(Verdict(name, REFUSED, reason))
        elif passed := _pass_over(one):
            walked.append(Verdict(name, PASSED, passed))
        else:
            walked.append(Verdict(name, CHOSEN, f"{one.what}; the first for {needs.card} that can serve these heads"))
            break
    return walked


def _pass_over(one: Candidate) -> str:
    if not one.untried:
        return ""
    return f"it could serve, but its adapter has {NEVER_RUN}: only --attention-backend {one.name} takes it"


def _spare(name: str, needs: Needs, chosen: str) -> Verdict:
    order = _order(needs)
    if name not in order:
        return Verdict(name, ALSO, f"by name; auto never takes it on {needs.card}")
    return Verdict(name, ALSO, f"by name; {chosen} comes first on {needs.card}")


def _why(needs: Needs, skipped: list[Verdict], chosen: Verdict) -> str:
    if not skipped:
        return f"first choice on {needs.card}: {because(needs)}"
    told = "; ".join(f"not {verdict.name}: {verdict.reason}" for verdict in skipped)
    return f"the best on {needs.card} that can serve; {told}"
