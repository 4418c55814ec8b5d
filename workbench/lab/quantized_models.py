"""The whole default model quantized by each algorithm and compared with itself in floats: minutes of work, done once.

``python -m workbench.lab.quantized_models`` (``make artifacts``) keeps the models in ``WORKBENCH_HOME/artifacts`` and
what came out beside them, as a recorded run of this machine; started again it goes on where it was stopped. Notebook 10
shows that run where it is there, else one that was recorded elsewhere (`workbench.lab.recorded`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.config import EngineConfig, from_options
from workbench.errors import WorkbenchError
from workbench.lab.recorded import RecordedRun, read_run, recorded_runs, write_run
from workbench.lab.table import Cell, Table
from workbench.model import store

if TYPE_CHECKING:
    from workbench.llm import LLM

NOTEBOOK = "10"
ALGORITHMS = ("rtn", "awq", "gptq")
SCHEME, GROUP = "w4a16", 64
TOKENS, WINDOW, STRIDE = 1024, 512, 512


class Whole(NamedTuple):
    """A model in 4 bits against itself in floats, on text that it was not calibrated with."""

    megabytes: float
    """Of the file, its embedding in 16 bits."""
    perplexity: float
    kl: float
    """KL(floats ‖ quantized), nats a token"""
    agreement: float
    """Percent of tokens for which both hold the same one to be the likeliest."""


class WholeModels(NamedTuple):
    models: dict[str, Whole]
    """By algorithm."""
    perplexity: float
    """In floats."""
    source: str
    """Which machine it was, and that it was another one where it was."""

    def table(self) -> Table:
        rows: list[list[Cell | str | int]] = [["floats", "–", f"{self.perplexity:.2f}", "0", "100"]]
        for how, one in self.models.items():
            rows.append([how, f"{one.megabytes:.0f}", f"{one.perplexity:.2f}", f"{one.kl:.3f}", f"{one.agreement:.1f}"])
        return Table(
            [f"{SCHEME}, groups of {GROUP}", "MB", "perplexity", "KL, nats", "same token %"], rows, self.source
        )


def folder() -> Path:
    return store.home() / "artifacts" / f"{NOTEBOOK}-{SCHEME}-g{GROUP}"


def whole_models() -> WholeModels:
    """What `make` found on this machine, else the newest recorded run. Raises WorkbenchError where there is neither."""
    own = folder() / "run.json"
    if own.is_file():
        return _of(read_run(own), "made here")
    runs = [run for run in recorded_runs(NOTEBOOK) if f"{ALGORITHMS[0]} KL" in run.values]
    if not runs:
        raise WorkbenchError("no quantized models are here and none were recorded: run `make artifacts`")
    return _of(max(runs, key=lambda run: str(run.provenance.get("date", ""))), "recorded")


def make(told: Callable[[str], None] = print) -> Path:
    """Quantizes and compares what is not done yet; returns the file of the run."""
    import torch

    from workbench.compress.quantize import quantize_model
    from workbench.llm import LLM
    from workbench.measure.provenance import provenance

    done, model = folder() / "run.json", EngineConfig().model
    if done.is_file():
        return done
    for algorithm in ALGORITHMS:
        out = folder() / algorithm
        if not (out / "config.json").is_file():
            told(f"{algorithm}: {out} is made")
            quantize_model(model, out, scheme=SCHEME, algorithm=algorithm, group_size=GROUP)
    small = {"device": "cpu", "num_kv_blocks": 64, "max_num_seqs": 1}
    floats = LLM(from_options({"model": model, "quantization": "none"} | small))
    llms = {how: LLM(from_options({"model": str(folder() / how)} | small)) for how in ALGORITHMS}
    rows, values = _scored(floats, llms, told), {}
    values["floats perplexity"] = _entry(rows.pop("floats")["perplexity"], "")
    for how, row in rows.items():
        values[f"{how} KL"] = _entry(row["kl"], "nats")
        values[f"{how} perplexity"] = _entry(row["perplexity"], "")
        values[f"{how} agreement"] = _entry(100 * row["top1_agreement"], "%")
        values[f"{how} MB"] = _entry((folder() / how / "model.safetensors").stat().st_size / 1e6, "MB")
    source = provenance(torch.device("cpu"))
    workload = f"{Path(model).name}, {SCHEME} in groups of {GROUP}, {TOKENS} tokens, window {WINDOW}, stride {STRIDE}"
    write_run(done, notebook=NOTEBOOK, device=source["cpu"], driver=None, provenance=source, workload=workload,
              values=values)  # fmt: skip
    return done


def _scored(floats: LLM, llms: Mapping[str, LLM], told: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """All models on `evaluation_text`, window by window side by side, so that floats are computed once a window; what
    is scored is kept."""
    from workbench.measure.evaluate import Record, Windows, score, summary, text_hash
    from workbench.text.sample_texts import evaluation_text

    assert floats.tokenizer is not None
    text, windows = evaluation_text(), Windows(WINDOW, STRIDE)
    ids = floats.tokenizer.encode(text)[:TOKENS]
    last: dict[tuple[int, ...], Any] = {}

    def exact(shown: list[int]) -> Any:
        if tuple(shown) not in last:
            last.clear()
            last[tuple(shown)] = floats.runner.logits(shown)
        return last[tuple(shown)]

    records, runs = {}, {}
    for how, llm in {"floats": floats, **llms}.items():
        head = {"weights": [floats.weights_fingerprint, llm.weights_fingerprint], "text": text_hash(text),
                "tokens": len(ids), "windows": asdict(windows), "quantization": llm.quantization.name}  # fmt: skip
        records[how] = Record(folder() / f"{how}.jsonl", head)
        model, reference = (exact, None) if llm is floats else (llm.runner.logits, exact)
        runs[how] = score(ids, windows, model, reference, records[how].kept)
    kept = {how: {part.begin for part in record.kept} for how, record in records.items()}
    parts: dict[str, list[Any]] = {how: [] for how in runs}
    for window in zip(*runs.values(), strict=True):
        for how, part in zip(runs, window, strict=True):
            parts[how].append(part)
            if part.begin not in kept[how]:
                records[how].add(part)
        told(f"{sum(part.tokens for part in parts['floats'])} of {len(ids)} tokens scored")
    return {how: summary(found, windows, text) for how, found in parts.items()}


def _entry(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "spread": None}


def _of(run: RecordedRun, how: str) -> WholeModels:
    def value(name: str) -> float:
        if name not in run.values:
            raise WorkbenchError(f"the run of {run.device} lacks {name!r}: remove {folder()} and run `make artifacts`")
        return run.values[name].value

    models = {
        algorithm: Whole(*(value(f"{algorithm} {name}") for name in ("MB", "perplexity", "KL", "agreement")))
        for algorithm in ALGORITHMS
    }
    date = str(run.provenance.get("date", ""))[:10]
    return WholeModels(models, value("floats perplexity"), f"{how}: {run.device}, {date}; {run.workload}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workbench.lab.quantized_models", description=__doc__)
    parser.add_argument("--record", metavar="FILE", help="also copy the run here, for other machines to show")
    args = parser.parse_args(arguments)
    run = make(lambda words: print(words, file=sys.stderr, flush=True))
    if args.record:
        Path(args.record).write_text(run.read_text(encoding="utf-8"), encoding="utf-8")
    for algorithm, one in whole_models().models.items():
        print(f"{algorithm}: {one.megabytes:.0f} MB, perplexity {one.perplexity:.2f}, KL {one.kl:.4f} nats")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
