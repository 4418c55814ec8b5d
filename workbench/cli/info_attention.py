"""``workbench info attention``: who computes attention for a model here or on another card, and why, by the engine's
own logic; beside it what SGLang and vLLM take."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from workbench.config import EngineConfig, default_model
from workbench.errors import UsageError
from workbench.lab.families import family, family_names
from workbench.lab.table import Cell, Table

if TYPE_CHECKING:
    from workbench.attention.choose import Needs, Verdict
    from workbench.model.config import ModelConfig

TONES = {"chosen": "decode", "passed over": "recompute", "refused": "quiet", "also possible": ""}


def add_flags(parser: argparse.ArgumentParser) -> None:
    def option(flag: str, help: str, **more: Any) -> None:
        parser.add_argument(flag, default=None, help=help, **more)

    option(
        "--model",
        "whose heads: as for simulate, or one that is only counted, such as gemma-2b or deepseek-v3 (default: "
        "WORKBENCH_MODEL, else the course's model)",
        metavar="NAME",
    )
    option("--device", "default: this machine's", choices=("cpu", "cuda"))
    option("--capability", "of a GPU that need not be here: 8.0 A100, 8.9 L4, 9.0 H100, 10.0 B200", metavar="X.Y")
    option(
        "--dtype", "of queries (default: float32 on a CPU, else bfloat16)", choices=("float32", "bfloat16", "float16")
    )
    option("--head-dim", "instead of the model's", type=int, metavar="N")
    option("--block-size", "tokens in one KV block (default: 16)", type=int, metavar="N")
    parser.add_argument("--batch-invariant", action="store_true", help="only those whose bits no neighbour changes")
    option("--installed", "as if these backends' libraries were installed, with commas between", metavar="NAME,…")


def attention(args: argparse.Namespace) -> None:
    import torch

    from workbench.attention.choose import because, judge
    from workbench.attention.peers import PEERS
    from workbench.attention.registry import why_not
    from workbench.attention.table import CANDIDATES
    from workbench.model.batch_invariant import why_not_products
    from workbench.model.sampling import chosen_sampler

    installed = _installed(args.installed, [one.name for one in CANDIDATES.values() if one.module])
    needs, heads = _needs(args)
    verdicts = judge(needs, lambda name: "" if heads is None else why_not(name, heads), installed)
    chosen = next(one for one in verdicts if one.verdict == "chosen")
    sampler = None if heads is None else chosen_sampler("auto", torch.device(needs.device))
    unkept = why_not_products(needs.device, needs.latent is not None) if needs.batch_invariant else None
    kind = "latent" if needs.latent else "attention"
    peers = [(peer, getattr(peer, kind)[needs.architecture]) for peer in PEERS]
    if args.json:
        print(json.dumps({
            "auto": chosen.name,
            "why": chosen.reason,
            "architecture": needs.architecture,
            "needs": dataclasses.asdict(needs),
            "backends": [one.name for one in verdicts],
            "candidates": [
                {**one._asdict(), "what": CANDIDATES[one.name].what, "tested": CANDIDATES[one.name].tested}
                for one in verdicts
            ],
            "peers": [
                {"system": peer.system, "version": peer.version, "order": order, "source": peer.source}
                for peer, order in peers
            ],
            "batch_invariant": None if unkept is None else {"served": not unkept, "why_not": unkept},
            "sampling": None if sampler is None else sampler._asdict(),
        }, indent=2, ensure_ascii=False))  # fmt: skip
        return
    print(_table(needs, verdicts, because(needs)))
    if unkept:
        print(f"\nThe engine refuses batch_invariant here all the same: {unkept}.")
    rows = [(f"{peer.system} {peer.version}", " → ".join(order) or "nothing", peer.source) for peer, order in peers]
    print()
    print(Table(("engine", f"takes on {needs.architecture}", "source"), rows))
    if sampler is not None:
        print(f"\nsampling: {sampler.name}: {sampler.why}. SGLang and vLLM take FlashInfer's sampler where it is.")


def _table(needs: Needs, verdicts: list[Verdict], order: str) -> Table:
    from workbench.attention.table import CANDIDATES, NEVER_RUN

    rows = [
        (
            one.name,
            Cell(one.verdict, TONES[one.verdict]),
            one.reason,
            NEVER_RUN if CANDIDATES[one.name].untried else CANDIDATES[one.name].tested,
        )
        for one in verdicts
    ]
    heads = f"{needs.num_heads} query and {needs.num_kv_heads} KV heads of {needs.head_dim}"
    kind = heads if needs.latent is None else f"{needs.num_heads} heads over latents of {sum(needs.latent)}"
    caption = f"{kind}, {needs.dtype}, blocks of {needs.block_size}, on {needs.card}. Why this order: {order}."
    return Table(("backend", "auto", "because", "tested on"), rows, caption)


def _needs(args: argparse.Namespace) -> tuple[Needs, Any]:
    """What is asked of attention; and the same as `Heads` where it is asked of this machine, else None."""
    import torch

    from workbench.attention.registry import needs_of
    from workbench.llm import resolve_device
    from workbench.model.decoder import heads_of

    model = _shape(args.model or default_model())
    capability = _capability(args.capability)
    if capability is not None and args.device == "cpu":
        raise UsageError(f"--capability {args.capability} is a GPU's and --device cpu is not: leave one of them out")
    elsewhere = capability is not None
    if args.device == "cuda" and not elsewhere and not torch.cuda.is_available():
        raise UsageError(
            "--device cuda: torch finds no GPU here; say which one is meant with --capability, such as 9.0"
        )
    device = torch.device("cuda") if elsewhere else resolve_device(args.device or EngineConfig().device)
    dtype = getattr(torch, args.dtype or ("float32" if device.type == "cpu" else "bfloat16"))
    for flag, value in (("--head-dim", args.head_dim), ("--block-size", args.block_size)):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value} is too small: the least is 1")
    heads = heads_of(model, dtype, device, dtype)
    if args.head_dim is not None:
        if model.latent is not None:
            raise UsageError(f"--head-dim {args.head_dim}: the model has latent attention, whose widths are its own")
        heads = heads._replace(head_dim=args.head_dim)
    needs = needs_of(heads, args.block_size or 16, args.batch_invariant)
    if elsewhere:
        return dataclasses.replace(needs, capability=capability), None
    return needs, heads


def _shape(name: str) -> ModelConfig:
    """As for ``workbench simulate``, and models of which the course keeps no more than the ``config.json``."""
    from workbench.simulate.models import model_shape

    known = family_names()
    if name in known:
        return family(name)
    try:
        return model_shape(name)
    except UsageError as error:
        raise UsageError(f"{error}; heads are known here of {', '.join(known)}") from None


def _capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,2})\.(\d)", text)
    if found is None:
        raise UsageError(f"--capability {text!r} is no compute capability: give it as 8.0, 8.9, 9.0 or 10.0")
    return int(found[1]), int(found[2])


def _installed(text: str | None, known: list[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")] if text else []
    for name in names:
        if name not in known:
            raise UsageError(f"--installed {name!r} is no backend that calls a library; there are {', '.join(known)}")
    return names
