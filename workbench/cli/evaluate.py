"""``workbench eval``: how well a model predicts a text, and how far it is from another model."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from workbench.cli.options import engine_config


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, metavar="MODEL",
                        help="a name, folder, .gguf file or hub id (default: the default model)")  # fmt: skip
    parser.add_argument("--reference", default=None, metavar="MODEL",
                        help="compare with this one, as floats: KL, and how often both agree")  # fmt: skip
    parser.add_argument("--text", default=None, metavar="FILE",
                        help="the text to score (default: pages of Python's language reference)")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=4096, metavar="N", help="of its head; 0: all (default: 4096)")
    parser.add_argument("--window", type=int, default=512, metavar="N", help="tokens seen at a time (default: 512)")
    parser.add_argument("--stride", type=int, default=256, metavar="N", help="from window to window (default: 256)")
    parser.add_argument("--bos", action="store_true", help="begin each window with the model's BOS token")
    parser.add_argument("--tasks", default=None, metavar="A,B",
                        help="tasks of lm-evaluation-harness in place of a text (extra `eval`)")  # fmt: skip
    parser.add_argument("--include-path", default=None, metavar="DIR", help="a folder with tasks of your own")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="of each task, so many examples")
    parser.add_argument("--record", default=None, metavar="FILE", help="keep what is scored; a stopped run goes on")


def evaluate(args: argparse.Namespace) -> int:
    from workbench.errors import UsageError
    from workbench.llm import LLM
    from workbench.measure.evaluate import Record, Windows, score, summary, text_hash
    from workbench.measure.watched import Watched
    from workbench.text.sample_texts import evaluation_text

    if args.tasks is not None:
        return _tasks(args)
    for flag in ("include_path", "limit"):
        if getattr(args, flag) is not None:
            raise UsageError(f"--{flag.replace('_', '-')} is for --tasks, and a text is scored: leave it out")
    text = evaluation_text(args.text)
    if args.tokens < 0:
        raise UsageError(f"--tokens {args.tokens} must be at least 1, or 0 for all")
    llm = LLM(engine_config(args))
    if llm.tokenizer is None:
        raise UsageError(f"{llm.config.model} has no tokenizer, which a text needs: give one by --tokenizer")
    bos = llm.tokenizer.bos_token_id if args.bos else None
    if args.bos and bos is None:
        raise UsageError(f"{llm.config.model} has no BOS token: leave --bos out")
    windows = Windows(args.window, args.stride, bos)
    if args.window > (llm.config.max_model_len or 0):
        raise UsageError(f"--window {args.window} is beyond max_model_len={llm.config.max_model_len}")
    ids = llm.tokenizer.encode(text)[: args.tokens or None]
    reference = None
    if args.reference is not None:
        where = {name: getattr(args, name) for name in ("device", "num_threads") if hasattr(args, name)}
        reference = LLM(model=args.reference, quantization="none", **where)
        if reference.tokenizer is None or reference.tokenizer.encode(text)[: args.tokens or None] != ids:
            raise UsageError(f"--reference {args.reference} cuts the text into other tokens: give a model of one kind")
    fingerprints = [one.weights_fingerprint for one in (llm, reference) if one is not None]
    run = {"weights": fingerprints, "tokens": len(ids), "quantization": llm.quantization.name, "text": text_hash(text),
           "kv_cache_dtype": llm.config.kv_cache_dtype, "windows": asdict(windows)}  # fmt: skip
    record = None if args.record is None else Record(Path(args.record).expanduser(), run)
    parts, total = [], len(list(windows.spans(len(ids))))
    kept = [] if record is None else record.kept
    known = {part.begin for part in kept}
    exact = Watched(reference.runner) if reference else None
    for part in score(ids, windows, Watched(llm.runner) if exact else llm.runner.logits, exact, kept):
        parts.append(part)
        if record is not None and part.begin not in known:
            record.add(part)
        print(f"window {len(parts)} of {total}", file=sys.stderr, flush=True)
    row = summary(parts, windows, text)
    row |= {"model": llm.config.model, "quantization": llm.quantization.name, "reference": args.reference}
    if args.json:
        print(json.dumps(row))
        return 0
    told = f"perplexity {row['perplexity']:.3f} a token"
    if row["reference_perplexity"] is not None:
        told += f" ({args.reference}: {row['reference_perplexity']:.3f})"
    if row["kl"] is not None:
        told += f", KL {row['kl']:.5f} nats, {row['top1_agreement']:.1%} the same likeliest token as {args.reference}"
    if row["layers"]:
        first, last = ("no noise" if one["snr_db"] is None else f"{one['snr_db']:.1f} dB"
                       for one in (row["layers"][0], row["layers"][-1]))  # fmt: skip
        told += f", SNR {first} after the first layer and {last} after the last"
    print(f"{told}; {row['tokens']} tokens, window {row['window']}, stride {row['stride']}, "
          f"{'with' if row['bos'] else 'no'} BOS, the text's SHA-256 {row['text_sha256'][:12]}…")  # fmt: skip
    return 0


def _tasks(args: argparse.Namespace) -> int:
    from workbench.errors import UsageError
    from workbench.llm import LLM
    from workbench.measure.harness import run_tasks

    for flag in ("reference", "text", "record"):
        if getattr(args, flag) is not None:
            raise UsageError(f"--{flag} is for a text, and --tasks are run: leave one of them out")
    told = run_tasks(lambda: LLM(engine_config(args)), args.tasks.split(","), args.include_path, args.limit)
    if args.json:
        print(json.dumps(told))
        return 0
    for task, figures in told["tasks"].items():
        print(f"{task}: " + ", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    return 0
