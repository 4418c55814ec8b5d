"""Public traces of real services, read by path: Mooncake (JSONL), Azure and BurstGPT (CSV), plain or gzip. No torch.

They say when requests came and how long they were; Mooncake's also which 512-token blocks they had in common. The words
are not in them, so prompts are random tokens: equal hash ids give equal tokens. The format is known by the first line.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from workbench.errors import UsageError, WorkbenchError
from workbench.measure.arrivals import replayed
from workbench.measure.lengths import Observed
from workbench.measure.workload import Ask, Piece, Workload

MOONCAKE_BLOCK = 512
"""Tokens that one of Mooncake's hash ids stands for; the last one of a prompt may stand for fewer."""

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


class Row(NamedTuple):
    time: float
    """Seconds, from an origin of the trace's own."""
    input_len: int
    output_len: int
    """0: the trace has no answer, because the request failed there."""
    hash_ids: tuple[int, ...] | None = None


class TraceFile(NamedTuple):
    format: str
    """``mooncake``, ``azure`` or ``burstgpt``"""
    rows: list[Row]
    """Those with an answer."""
    unanswered: int
    """Rows without an answer (failed requests), left out."""
    sha256: str


def read_trace(path: str | Path, limit: int | None = None) -> TraceFile:
    """The first ``limit`` answered requests of a trace, or all.

    Raises UsageError that names file and line for a row that makes no sense, or a file that cannot be opened.
    """
    path = Path(path)
    rows: list[Row] = []
    unanswered = 0
    try:
        with _open(path) as file:
            name, read = _format(path, file.readline())
        with _open(path) as file:
            last = -math.inf
            for line, row in read(path, file):
                if row.time < last:
                    raise _bad(path, line, f"time goes back from {last} s to {row.time} s")
                last = row.time
                if row.output_len == 0:
                    unanswered += 1
                    continue
                rows.append(row)
                if len(rows) == limit:
                    break
    except gzip.BadGzipFile as error:  # an OSError too
        raise WorkbenchError(f"{path} is damaged ({error}): bring it again") from None
    except OSError as error:
        raise UsageError(
            f"the trace {str(path)!r} cannot be read: {error.strerror or error}; name a file that is there"
        ) from None
    except (EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise WorkbenchError(f"{path} is damaged ({error}): bring it again") from None
    if not rows:
        raise UsageError(f"{path} holds no answered request: give another trace")
    return TraceFile(name, rows, unanswered, hashlib.sha256(path.read_bytes()).hexdigest())


def trace_workload(path: str | Path, seed: int, limit: int | None = None, speed: float = 1.0) -> Workload:
    """A trace as a workload: its requests at its times, ``speed`` times as fast."""
    trace = read_trace(path, limit)
    times = replayed([row.time for row in trace.rows], speed)
    asks = tuple(
        Ask(_pieces(index, row), row.output_len, time)
        for index, (row, time) in enumerate(zip(trace.rows, times, strict=True))
    )
    return Workload(asks, seed, {
        "kind": "trace", "format": trace.format, "file": Path(path).name, "sha256": trace.sha256,
        "num_prompts": len(asks), "unanswered": trace.unanswered, "arrivals": "replayed", "speed": speed, "seed": seed,
    })  # fmt: skip


def trace_lengths(trace: TraceFile, source: str) -> tuple[Observed, Observed]:
    """The prompt and the answer lengths of a trace, to draw from."""
    return (
        Observed(tuple(row.input_len for row in trace.rows), f"prompts of {source}"),
        Observed(tuple(row.output_len for row in trace.rows), f"answers of {source}"),
    )


def _pieces(index: int, row: Row) -> tuple[Piece, ...]:
    if row.hash_ids is None:
        return (Piece(f"own {index}", row.input_len),)
    left = row.input_len - MOONCAKE_BLOCK * (len(row.hash_ids) - 1)
    *full, last = row.hash_ids
    return (*(Piece(f"hash {number}", MOONCAKE_BLOCK) for number in full), Piece(f"hash {last}", left))


def _format(path: Path, first: str) -> tuple[str, Any]:
    if first.lstrip().startswith("{"):
        return "mooncake", _mooncake
    names = next(csv.reader([first]), [])
    for name, wanted, read in (("azure", AZURE, _azure), ("burstgpt", BURSTGPT, _burstgpt)):
        if all(column in names for column in wanted):
            return name, read
    raise UsageError(
        f"{path} is no trace that can be read: its first line is neither a JSON object (Mooncake) nor a CSV head with "
        f"the columns {', '.join(AZURE)} (Azure) or {', '.join(BURSTGPT)} (BurstGPT)"
    )


def _mooncake(path: Path, file: TextIO) -> Iterator[tuple[int, Row]]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
            time = float(row["timestamp"]) / 1e3
            input_len, output_len, ids = row["input_length"], row["output_length"], row["hash_ids"]
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise _bad(
                path, line, f"no object with timestamp, input_length, output_length, hash_ids: {error}"
            ) from None
        if not isinstance(ids, list) or not all(_whole(number) for number in ids):
            raise _bad(path, line, f"hash_ids={ids!r} must be a list of whole numbers")
        _check(path, line, time, input_len, output_len)
        if len(ids) != -(-input_len // MOONCAKE_BLOCK):
            blocks = f"{len(ids)} hash_ids for {input_len} tokens"
            raise _bad(path, line, f"{blocks}: there must be one for each {MOONCAKE_BLOCK} tokens")
        yield line, Row(time, input_len, output_len, tuple(ids))


def _azure(path: Path, file: TextIO) -> Iterator[tuple[int, Row]]:
    return _csv(path, file, AZURE, _date)


def _burstgpt(path: Path, file: TextIO) -> Iterator[tuple[int, Row]]:
    return _csv(path, file, BURSTGPT, float)


def _csv(path: Path, file: TextIO, columns: tuple[str, str, str], time_of: Any) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(file)
    head = next(reader)
    places = [head.index(column) for column in columns]
    for cells in reader:
        if not cells:
            continue
        line = reader.line_num
        if len(cells) != len(head):
            raise _bad(path, line, f"{len(cells)} cells under a head of {len(head)}")
        texts = [cells[place] for place in places]
        try:
            time, input_len, output_len = time_of(texts[0]), int(texts[1]), int(texts[2])
        except ValueError:
            pairs = ", ".join(f"{name}={text!r}" for name, text in zip(columns, texts, strict=True))
            raise _bad(path, line, f"{pairs}: a time and two whole numbers must stand there") from None
        _check(path, line, time, input_len, output_len)
        yield line, Row(time, input_len, output_len)


def _date(text: str) -> float:
    moment = datetime.fromisoformat(text)
    # Without a zone it is read as UTC: local time would jump with the clocks.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _check(path: Path, line: int, time: float, input_len: Any, output_len: Any) -> None:
    if not math.isfinite(time):
        raise _bad(path, line, f"the time {time} must be a finite number")
    if not _whole(input_len) or input_len < 1:
        raise _bad(path, line, f"{input_len!r} prompt tokens: there must be a whole number of at least 1")
    if not _whole(output_len) or output_len < 0:
        raise _bad(path, line, f"{output_len!r} answer tokens: there must be a whole number of at least 0")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(path: Path, line: int, why: str) -> UsageError:
    return UsageError(f"{path}, line {line}: {why}")


def _open(path: Path) -> TextIO:
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    # utf-8-sig: some tools put a mark before the first column's name.
    return gzip.open(path, "rt", encoding="utf-8-sig") if zipped else open(path, encoding="utf-8-sig")
