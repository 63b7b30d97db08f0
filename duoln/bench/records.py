"""A record of measurements, as `--json FILE` writes it: schema `duoln-bench/1`, one JSON object.

    schema        "duoln-bench/1"
    kind          "ops", "rnn", "attention", "train", "language-model" or "wide": which benchmark
    label         a name for the machine, from `--label`
    duoln         version of duoln
    git           {"sha", "dirty"} where duoln runs from a checkout, else null
    time          UTC, ISO 8601
    backend       {"name", "library", "device", ...}: name, and everything that `Backend.info()` says; for numpy also
                  "rules": "compiled" with "compiler", "flags" and "vector_bits", or "interpreted" with the "reason";
                  for a GPU "rules proved", "rules trusted" and "rules set aside": those that the process used
    host          {"cpu", "cores", "ram" (bytes or null), "os", "python"}
    flags         environment variables that are set and change arithmetic or its speed
    copy_gbps     bandwidth of a plain copy on the same device, beyond its caches, in the same turns: read + written,
                  1e9 bytes a second; on a CPU by our own C++ with streaming stores, where that is compiled
    cases         a list, one object for each thing timed and each side:

      op, pass      what; "forward", "forward+backward", or "step" (a whole training step)
      shape         [rows, width]; rnn: [time, batch, in, hidden]; train: [batch]; language-model: its sizes
      settings      what else decides the work: preset and settings of a task; else {}
      dtype         "float32"
      side          "duoln", or the peer's name
      rule          the rule of the operator that ran; null for a peer and for a whole step
      clock         "wall_run" (`duoln.bench.clock`); in older records also "wall_slope"
      cache         "cold": inputs rotate through more than twice the last-level cache; "warm": the same inputs each
                    time; "running": whatever the run before left
      warmups       calls before the first sample
      samples       seconds of a call, of each turn the median of its runs
      median, p10, p90, mad      of the samples, seconds; mad is the median absolute deviation from the median
      bytes         what must be read and written at least, each array once, or null
      gbps          bytes / median, 1e9 bytes a second, or null
      fraction_of_copy           gbps over what a copy moved in the same turns, null where a cache may hold inputs
      flops, gflops              floating-point operations, and 1e9 of them a second, or null

A case may have more keys: `ratio` (the median over turns of our time over this side's), `runs` (of a turn),
`event_seconds` and `event_samples` (a call in a graph of a run's calls, by the device's own clock) or
`no_event_seconds` (why there is no graph), `facts` (what a side's process ran with). A record may have `missing`: the
reasons why sides or rows could not be timed.
A file of timings has one line for each case: all of the above but `cases` and `label` under `machine`, then `label`
and the case's own keys. What is read is checked key by key, so that a comparison never gets an incomplete record.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import duoln
from duoln.backends.protocol import Backend
from duoln.bench import machine
from duoln.bench.row import RECORDED, Row
from duoln.data import json_text
from duoln.data.text import read_lines
from duoln.errors import CheckpointError, DataFormatError, RecordError, UsageError
from duoln.runs.commit import git
from duoln.system.filesystem import write_atomically

SCHEMA = "duoln-bench/1"
KINDS = ("ops", "rnn", "attention", "train", "language-model", "wide")
PASSES = ("forward", "forward+backward", "step")
CLOCKS = ("wall_slope", "wall_run")
CACHES = ("cold", "warm", "running")

_MAX_BYTES = 1 << 24
"""The largest record in bytes; a record of all operators has some 500,000."""
_MOST_TIMINGS, _LONGEST_LINE = 1 << 30, 1 << 20
"""The most bytes of a file of timings, and of a line; a line has some 2,000."""


class _Want(NamedTuple):
    """The kind of a value: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]

    def or_null(self) -> _Want:
        return _Want(f"{self.words} or null", lambda v: v is None or self.holds(v))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _one_of(names: tuple[str, ...]) -> _Want:
    return _Want(f"one of {', '.join(names)}", lambda v: isinstance(v, str) and v in names)


_TEXT = _Want("a text that is not empty", lambda v: isinstance(v, str) and v != "")
_OBJECT = _Want("an object", lambda v: isinstance(v, dict))
_FLAG = _Want("true or false", lambda v: isinstance(v, bool))
_COUNT = _Want("a whole number of at least 0", _is_count)
_POSITIVE = _Want("a number from 1e-100 to 1e100", lambda v: _is_number(v) and 1e-100 <= v <= 1e100)
"""Ratios of two of them, and their products, are finite and above 0."""
_NUMBER = _Want("a finite number of at least 0", lambda v: _is_number(v) and v >= 0)
_SAMPLES = _Want("a list of numbers above 0, at least one",
                 lambda v: isinstance(v, list) and len(v) > 0 and all(_is_number(s) and s > 0 for s in v))
_SHAPE = _Want("a list of whole numbers above 0",
               lambda v: isinstance(v, list) and len(v) > 0 and all(_is_count(n) and n > 0 for n in v))
_TEXTS = _Want("an object of texts", lambda v: isinstance(v, dict) and all(isinstance(t, str) for t in v.values()))

_HEADER = {
    "schema": _one_of((SCHEMA,)), "kind": _one_of(KINDS), "duoln": _TEXT, "git": _OBJECT.or_null(), "time": _TEXT,
    "backend": _TEXTS, "host": _OBJECT, "flags": _TEXTS, "copy_gbps": _POSITIVE,
}
_PARTS = {
    "git": {"sha": _TEXT, "dirty": _FLAG},
    "backend": {"name": _TEXT, "library": _TEXT, "device": _TEXT},
    "host": {"cpu": _TEXT, "cores": _COUNT, "ram": _COUNT.or_null(), "os": _TEXT, "python": _TEXT},
}
_CASE = {
    "op": _TEXT, "pass": _one_of(PASSES), "shape": _SHAPE, "settings": _OBJECT, "dtype": _TEXT, "side": _TEXT,
    "rule": _TEXT.or_null(), "clock": _one_of(CLOCKS), "cache": _one_of(CACHES), "warmups": _COUNT,
    "samples": _SAMPLES, "median": _POSITIVE, "p10": _POSITIVE, "p90": _POSITIVE, "mad": _NUMBER,
    "bytes": _COUNT.or_null(), "gbps": _NUMBER.or_null(), "fraction_of_copy": _NUMBER.or_null(),
    "flops": _COUNT.or_null(), "gflops": _NUMBER.or_null(),
}

IDENTITY = ("op", "pass", "shape", "settings", "side", "dtype", "cache", "clock")
"""The keys that identify a case."""


# Making and writing ------------------------------------------------------------------------------------

def spread(samples: Sequence[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile, and median absolute deviation."""
    low, median, high = quantiles(samples, 0.1, 0.5, 0.9)
    mad = statistics.median(abs(s - median) for s in samples)
    return {"median": median, "p10": low, "p90": high, "mad": mad}


def quantiles(samples: Sequence[float], *shares: float) -> list[float]:
    """The values that have these shares of the samples below them: a sample, or the mean of two (Hyndman and Fan 1996,
    definition 2).
    """
    values: list[float] = np.quantile(samples, shares, method="averaged_inverted_cdf").tolist()
    return values


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of our time over theirs in the same round."""
    number: float = statistics.median(ratios(ours, theirs))
    return number


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Our time over theirs in each round, from the least."""
    return sorted(a / b for a, b in zip(ours, theirs, strict=True))


def make_case(row: Row, side: Mapping[str, Any], copy_gbps: float, **more: Any) -> dict[str, Any]:
    """The case of a row and a side, with the figures that follow from its samples. The keys are those of the schema.

    Args:
        row: what was timed.
        side: its entry of `Kept.time`.
        copy_gbps: the bandwidth of a copy in the same turns.
        more: further keys.
    """
    figures, facts = spread(side["samples"]), side["facts"]
    gbps = None if row.moved is None else row.moved / figures["median"] / 1e9
    return {
        "op": row.op, "pass": RECORDED.get(row.passes, row.passes), "shape": list(row.shape),
        "settings": dict(row.settings), "dtype": "float32", "rule": facts.get("rule"), "clock": "wall_run",
        "cache": row.cache, "warmups": facts["warmups"], **figures,
        "bytes": row.moved, "gbps": gbps,
        "fraction_of_copy": None if gbps is None or row.cache == "warm" else gbps / copy_gbps,
        "flops": row.flops, "gflops": None if row.flops is None else row.flops / figures["median"] / 1e9,
        **side, **more,
    }


def make_record(kind: str, backend: Backend, label: str | None, copy_gbps: float,
                cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A whole record, checked against its schema."""
    record = {
        "schema": SCHEMA, "kind": kind, "label": label or machine.default_label(backend), "duoln": duoln.__version__,
        "git": git(), "time": datetime.now(UTC).isoformat(timespec="microseconds"),
        "backend": machine.backend_facts(backend), "host": machine.host(), "flags": machine.flags(),
        "copy_gbps": copy_gbps, "cases": [dict(c) for c in cases],
    }
    check_record(record, "this record")
    return record


def as_json(record: Mapping[str, Any]) -> str:
    """A record as the text of a file."""
    return json_text.dumps(record, indent=1)


def check_target(path: Path) -> None:
    """Raises UsageError if a file cannot be written there. This is checked before the timing, which takes minutes."""
    folder = path.absolute().parent
    obstacle = "a folder" if path.is_dir() else "a link to nothing" if path.is_symlink() and not path.exists() else \
        "" if folder.is_dir() else f"no folder {folder}"
    if obstacle:
        raise UsageError(f"[bench] {path}: expected a file in a folder that exists, found {obstacle}")


def write(record: Mapping[str, Any], path: Path) -> None:
    """Write a record to a file.

    Raises:
        CheckpointError: it cannot be written.
    """
    write_atomically(path, f"{as_json(record)}\n".encode())


def timings(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A record's cases as lines of `timings.jsonl`; each line names the machine."""
    where = {key: value for key, value in record.items() if key not in ("label", "cases")}
    return [{"label": record["label"], "machine": where, **case} for case in record["cases"]]


def append_timings(record: Mapping[str, Any], path: Path) -> int:
    """Add a record's cases to a file of timings, which may not exist yet. The result is the number of cases.

    Raises:
        CheckpointError: it cannot be written.
    """
    lines = [f"{json_text.dumps(line)}\n".encode() for line in timings(record)]
    try:
        before = path.read_bytes() if path.is_file() else b""  # a device or a named pipe may have no end
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    gap = b"\n" if before and not before.endswith(b"\n") else b""
    write_atomically(path, b"".join([before, gap, *lines]))
    return len(lines)


# Reading ----------------------------------------------------------------------------------------------

def identity(case: Mapping[str, Any]) -> str:
    """A text that is equal for two cases if and only if they may be compared."""
    return json.dumps([case[key] for key in IDENTITY], sort_keys=True)


def load(path: Path) -> dict[str, Any]:
    """A record from a file, checked.

    Raises:
        DataMissingError: the file cannot be read.
        DataFormatError: it is no JSON, or cut short.
        UsageError: a record of another schema.
        RecordError: a key is missing or wrong.
    """
    try:
        content = json_text.read_json(path, _MAX_BYTES)
    except DataFormatError as error:
        if path.suffix == ".jsonl":
            raise UsageError(f"{path}: expected a record, as --json writes it; found lines of --append, which `duoln "
                             "bench machines` reads") from error
        raise
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, str) and schema != SCHEMA:
        raise UsageError(f"{path}: schema: expected {SCHEMA}, found {schema!r}; measure again with this duoln")
    check_record(content, path)
    record: dict[str, Any] = content
    return record


def load_timings(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of timings, checked; errors as those of `load`."""
    lines = []
    if path.suffix == ".json":
        raise UsageError(f"{path}: expected lines of timings, as --append FILE.jsonl writes them; a record of --json "
                         "is for `duoln compare`")
    for number, text in read_lines(path, _MOST_TIMINGS, _LONGEST_LINE):
        where = f"{path}, line {number}"
        line = json_text.json_of(where, text.encode())
        _check_keys(line, {"label": _TEXT, "machine": _OBJECT}, "", where)
        _check_header(line["machine"], "machine.", where)
        _check_keys(line, _CASE, "", where)
        lines.append(line)
    return lines


def check_record(content: Any, file: object) -> None:
    """Check a whole record.

    Raises:
        RecordError: it names the file, the key, what was expected and what was found.
    """
    _check_keys(content, {"schema": _HEADER["schema"]}, "", file)
    _check_header(content, "", file)
    _check_keys(content, {"label": _TEXT, "cases": _Want("a list", lambda v: isinstance(v, list))}, "", file)
    for i, case in enumerate(content["cases"]):
        _check_keys(case, _CASE, f"cases[{i}].", file)
    first: dict[str, int] = {}
    for i, case in enumerate(content["cases"]):
        earlier = first.setdefault(identity(case), i)
        if earlier != i:
            raise RecordError(file, f"cases[{i}]", "a case that the record has once", f"the case of cases[{earlier}]")


def _check_header(content: Mapping[str, Any], prefix: str, file: object) -> None:
    _check_keys(content, _HEADER, prefix, file)
    for name, wants in _PARTS.items():
        if content[name] is not None:
            _check_keys(content[name], wants, f"{prefix}{name}.", file)


def _check_keys(content: Any, wants: Mapping[str, _Want], prefix: str, file: object) -> None:
    if not isinstance(content, dict):
        raise RecordError(file, prefix.rstrip(".") or "the whole", "an object", _shown(content))
    for key, want in wants.items():
        if key not in content:
            raise RecordError(file, f"{prefix}{key}", want.words, "no such key")
        if not want.holds(content[key]):
            raise RecordError(file, f"{prefix}{key}", want.words, _shown(content[key]))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
