"""The whole default model quantized by each algorithm and compared with itself in floats: minutes of work, done once.

``python -m workbench.lab.quantized_models`` (``make artifacts``) keeps the models in ``WORKBENCH_HOME/artifacts`` and
what came out beside them, as a recorded run of this machine; started again it goes on where it was stopped. Notebook 10
shows that run where it is there, else one that was recorded elsewhere (`workbench.lab.recorded`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.config import EngineConfig
from workbench.errors import WorkbenchError
from workbench.lab.recorded import RecordedRun, read_run, recorded_runs, write_run
from workbench.lab.table import Cell, Table
from workbench.model import store

if TYPE_CHECKING:
    from workbench.llm import LLM

NOTEBOOK = "10"
ALGORITHMS = ("rtn", "awq", "gptq")
SCHEME, GROUP = "w4a16", 64
TOKENS, WINDOW, STRIDE = 2048, 512, 256


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
    floats = LLM(model=model, quantization="none", device="cpu", num_kv_blocks=64, max_num_seqs=1)
    values = {"floats perplexity": _entry(_scored(floats, None, told)["perplexity"], "")}
    for algorithm in ALGORITHMS:
        out = folder() / algorithm
        row = _scored(LLM(model=str(out), device="cpu", num_kv_blocks=64, max_num_seqs=1), floats, told)
        values[f"{algorithm} KL"] = _entry(row["kl"], "nats")
        values[f"{algorithm} perplexity"] = _entry(row["perplexity"], "")
        values[f"{algorithm} agreement"] = _entry(100 * row["top1_agreement"], "%")
        values[f"{algorithm} MB"] = _entry((out / "model.safetensors").stat().st_size / 1e6, "MB")
    source = provenance(torch.device("cpu"))
    workload = f"{Path(model).name}, {SCHEME} in groups of {GROUP}, {TOKENS} tokens, window {WINDOW}, stride {STRIDE}"
    write_run(done, notebook=NOTEBOOK, device=source["cpu"], driver=None, provenance=source, workload=workload,
              values=values)  # fmt: skip
    return done


def _scored(llm: LLM, reference: LLM | None, told: Callable[[str], None]) -> dict[str, Any]:
    """Against `evaluation_text`, window by window, each kept."""
    from workbench.measure.evaluate import Record, Windows, score, summary, text_hash
    from workbench.text.sample_texts import evaluation_text

    assert llm.tokenizer is not None
    text, windows = evaluation_text(), Windows(WINDOW, STRIDE)
    ids, name = llm.tokenizer.encode(text)[:TOKENS], Path(llm.config.model).stem
    fingerprints = [one.weights_fingerprint for one in (llm, reference) if one is not None]
    head = {"weights": fingerprints, "text": text_hash(text), "tokens": len(ids), "windows": asdict(windows),
            "quantization": llm.quantization.name}  # fmt: skip
    record = Record(folder() / f"{name}.jsonl", head)
    parts, kept = [], {part.begin for part in record.kept}
    for part in score(ids, windows, llm.runner.logits, reference.runner.logits if reference else None, record.kept):
        parts.append(part)
        if part.begin not in kept:
            record.add(part)
        told(f"{name}: {sum(one.tokens for one in parts)} of {len(ids)} tokens scored")
    return summary(parts, windows, text)


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
