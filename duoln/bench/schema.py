"""Reads records of measurements and checks every key, so that a comparison never gets an incomplete record."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from duoln.data.json_text import json_of, read_json
from duoln.data.text import read_lines
from duoln.errors import DataFormatError, RecordError, UsageError

SCHEMA = "duoln-bench/1"
KINDS = ("ops", "rnn", "attention", "train", "language-model", "wide", "device")
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
        content = read_json(path, _MAX_BYTES)
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
        line = json_of(where, text.encode())
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
