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
    copy_gbps     bandwidth of a plain copy on the same device, beyond its caches: read + written, 1e9 bytes a second;
                  on a CPU by our own C++ with streaming stores, where that is compiled
    cases         a list, one object for each thing timed and each side:

      op, pass      what; "forward", "forward+backward", or "step" (a whole training step)
      shape         [rows, width]; rnn: [time, batch, in, hidden]; train: [batch]; language-model: its sizes
      settings      what else decides the work: preset and settings of a task; else {}
      dtype         "float32"
      side          "duoln", or the peer's name
      rule          the rule of the operator that ran; null for a peer and for a whole step
      clock         "wall_slope" (`duoln.bench.clock`), or "wall_run": median wall time of the runs of a turn
      cache         "cold": inputs rotate through more than twice the last-level cache; "warm": the same inputs each
                    time; "running": whatever the run before left
      warmups       launches or runs before the first sample
      samples       all of them, seconds per launch or run
      median, p10, p90, mad      of the samples, seconds; mad is the median absolute deviation from the median
      bytes         what must be read and written at least, each array once, or null
      gbps          bytes / median, 1e9 bytes a second, or null
      fraction_of_copy           gbps over what a copy moved just before, or null; of inputs that come from memory alone
      flops, gflops              floating-point operations, and 1e9 of them a second, or null
      max_error     largest difference from the composed rule in float64 on NumPy, beside CuPy on CuPy, over values and
                    gradients, relative to the largest value of each; null where it was not measured
      source        sha256 over the source files of the rule, in `kernels/OP/`, and shared headers; null for a
                    composed rule or a peer

A case may have more keys: `launches` (k of the slope), `repeated` (samples that were taken again), `event_seconds`
and `event_samples` (a launch in a graph of k launches, by the device's own clock) or `no_event_seconds` (why there is
no graph), `facts` (what a side's process ran with).
`timings.jsonl` has one line for each case: all of the above but `cases` and `label` under `machine`, then `label`
and the case's own keys.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import duoln
from duoln.backends.protocol import Backend
from duoln.bench import clock, machine
from duoln.bench.schema import SCHEMA, check_record
from duoln.data import json_text
from duoln.errors import CheckpointError, UsageError
from duoln.runs.commit import git
from duoln.system.filesystem import write_atomically

_SOURCES = (".py", ".cpp", ".cu", ".cuh", ".metal", ".h")


class Work(NamedTuple):
    """The work of one side of `bench rnn` or `bench train`."""

    run: Callable[[int], Any]
    """Makes one timed run; its argument is the number of the run."""
    checks: list[float]
    """Figures that every side must agree on."""
    facts: dict[str, Any]
    first: int = 0
    """The number of the first timed run."""
    warmups: int = 0
    capture: Callable[[], clock.DeviceSeconds | None] = lambda: None
    """Captures a run as a graph, whose time is the device's own."""


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile, and median absolute deviation."""
    low, median, high = quantiles(samples, 0.1, 0.5, 0.9)
    return {"median": median, "p10": low, "p90": high, "mad": clock.deviation(samples)}


def quantiles(samples: Sequence[float], *shares: float) -> list[float]:
    """The values that have these shares of the samples below them: a sample, or the mean of two (Hyndman and Fan 1996,
    definition 2).
    """
    values: list[float] = np.quantile(samples, shares, method="averaged_inverted_cdf").tolist()
    return values


def ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The median over rounds of our time over theirs in the same round."""
    number: float = statistics.median(ratios(ours, theirs))
    return number


def ratios(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[float]:
    """Our time over theirs in each round, from the least."""
    return sorted(a / b for a, b in zip(ours["samples"], theirs["samples"], strict=True))


def source_hash(root: Path, folders: Iterable[str]) -> str:
    """sha256 over the names and contents of the source files in some folders below `root`, and of the headers in its
    folder `text`, which are pasted into them; cases are no source.
    """
    digest = hashlib.sha256()
    shared = [p for p in (root / "text").rglob("*") if p.suffix in _SOURCES]
    for path in sorted(shared + [p for folder in folders for p in (root / folder).iterdir()
                                 if p.suffix in _SOURCES and p.name != "cases.py"]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def make_case(*, op: str, passes: str, shape: Sequence[int], side: str, samples: Sequence[float], clock_name: str,
              cache: str, warmups: int, copy_gbps: float, rule: str | None = None, source: str | None = None,
              moved: int | None = None, flops: int | None = None, max_error: float | None = None,
              settings: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """One case of a record, with the figures that follow from its samples. The keys are those of the schema.

    Args:
        passes: "forward", "forward+backward" or "step"; `pass` in the record.
        moved: the least bytes; `bytes` in the record.
        more: further keys.
    """
    figures = spread(samples)
    gbps = None if moved is None else moved / figures["median"] / 1e9
    return {
        "op": op, "pass": passes, "shape": list(shape), "settings": dict(settings or {}), "dtype": "float32",
        "side": side, "rule": rule, "clock": clock_name, "cache": cache, "warmups": warmups,
        "samples": list(samples), **figures, "bytes": moved, "gbps": gbps,
        "fraction_of_copy": None if gbps is None or cache == "warm" else gbps / copy_gbps,
        "flops": flops, "gflops": None if flops is None else flops / figures["median"] / 1e9,
        "max_error": max_error, "source": source, **more,
    }


def of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a case that a row of `turns.time_in_turns` gives."""
    return {"side": row["name"], "samples": row["samples"], "clock_name": "wall_run", "cache": "running",
            "warmups": row["facts"]["warmups"], "ratio": row["ratio"], "facts": row["facts"], **row["events"]}


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
