"""`duoln compare`: records of several machines beside each other, or a refusal where that would mislead.

Two cases are compared only if operator, pass, shape, settings, side, dtype, cache and clock are the same. Other
differences that can change a time (flags, the version of duoln, the rule that ran) give a warning.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.bench import text
from duoln.bench.schema import identity, load
from duoln.errors import UsageError
from duoln.runs.commit import commit_words
from duoln.runs.series import short_names

SCHEMA = "duoln-compare/1"

_WORK = ("op", "pass", "shape", "settings", "side")
_MANNER = ("dtype", "cache", "clock")
_SHOWN_REASONS = 3
_WIDEST_SPREAD = 0.1
"""The largest spread of a case's samples, the median deviation over the median, at which its times may be compared."""
_COPY = "copy"


class File(NamedTuple):
    """One record: the path of its file, and its number among the files, such as "#1"."""

    path: Path
    name: str
    label: str
    """The record's, with the file where another record has the same."""
    record: dict[str, Any]
    cases: dict[str, dict[str, Any]]
    """The cases by their identity."""

    @property
    def heading(self) -> str:
        """Number and label."""
        return f"{self.name} {self.label}"


class Cell(NamedTuple):
    """One case on one machine."""

    seconds: float
    speedup: float
    """The first file's time over this one's."""
    fraction_of_copy: float | None
    rule: str | None


class Row(NamedTuple):
    """One case, with its figures in each file; None for a file that does not have the case."""

    case: Mapping[str, Any]
    cells: list[Cell | None]


class Mean(NamedTuple):
    """The geometric mean of the speed-ups of a group's rows in one file."""

    speedup: float
    rows: int
    """The number of rows of the group that the file has."""


class Group(NamedTuple):
    """The rows of one operator, layer or task, and one side."""

    op: str
    side: str
    means: list[Mean | None]
    """One for each file after the first; None for a file that has no row of the group."""


class Left(NamedTuple):
    """A case left out of the rows, or with an empty cell, and the reason why."""

    op: str
    case: str
    """The case in words."""
    why: str


class Comparison(NamedTuple):
    """The comparison of several files."""

    files: list[File]
    rows: list[Row]
    warnings: list[str]
    not_comparable: list[Left]
    variation: list[str]
    """The variation between files of one machine, in words."""

    def as_json(self) -> dict[str, Any]:
        """The comparison as plain data, for programs."""
        return {
            "schema": SCHEMA,
            "files": [{"file": str(f.path), "name": f.name, "label": f.record["label"],
                       "backend": f.record["backend"], "host": f.record["host"],
                       "copy_gbps": f.record["copy_gbps"]} for f in self.files],
            "groups": [{**group._asdict(), "means": [None if m is None else m._asdict() for m in group.means]}
                       for group in groups(self)],
            "rows": [{**{key: row.case[key] for key in (*_WORK, *_MANNER)},
                      "cells": [None if c is None else c._asdict() for c in row.cells]} for row in self.rows],
            "warnings": self.warnings, "variation": self.variation,
            "not_comparable": [{"case": left.case, "why": left.why} for left in self.not_comparable],
        }


def compare(paths: Sequence[Path]) -> Comparison:
    """Read and compare.

    Raises:
        DataError: a file is missing or malformed.
        UsageError: fewer than two files, another schema, or a file that has no case in common with the first.
    """
    if len(paths) < 2:
        raise UsageError(f"[compare] expected two files or more, found {len(paths)}")
    files = _numbered([(path, load(path)) for path in paths])
    first = files[0]
    left: list[Left] = []
    for second in files[1:]:
        reasons = _not_comparable(first, second)
        if not first.cases.keys() & second.cases.keys():
            raise UsageError(_refusal(first, second, reasons))
        left += reasons
    rows = [Row(case, [_cell(f.cases.get(key), case) for f in files]) for key, case in first.cases.items()
            if any(key in f.cases for f in files[1:])]
    return Comparison(files, rows, _warnings(files, rows), left, _varying(files))


def groups(comparison: Comparison) -> list[Group]:
    """One figure a group and file: the geometric mean of the speed-up over the first file."""
    members: dict[tuple[str, str], list[Row]] = {}
    for row in comparison.rows:
        members.setdefault((row.case["op"], row.case["side"]), []).append(row)
    return [Group(op, side, [_mean(rows, k) for k in range(1, len(comparison.files))])
            for (op, side), rows in members.items()]


def _mean(rows: Sequence[Row], column: int) -> Mean | None:
    speedups = [cell.speedup for row in rows if (cell := row.cells[column]) is not None]
    return Mean(statistics.geometric_mean(speedups), len(speedups)) if speedups else None


def _numbered(records: Sequence[tuple[Path, dict[str, Any]]]) -> list[File]:
    """The number and label of each file; tables use the numbers, because labels are long and may be equal."""
    labels = [record["label"] for _, record in records]
    names = short_names([path for path, _ in records])
    own = [label if labels.count(label) == 1 else f"{label} ({name})"
           for label, name in zip(labels, names, strict=True)]
    return [File(path, f"#{k}", label, record, {identity(case): case for case in record["cases"]})
            for k, ((path, record), label) in enumerate(zip(records, own, strict=True), 1)]


def _cell(case: Mapping[str, Any] | None, reference: Mapping[str, Any]) -> Cell | None:
    if case is None:
        return None
    return Cell(case["median"], reference["median"] / case["median"], case["fraction_of_copy"], case["rule"])


def _work(case: Mapping[str, Any]) -> str:
    return json.dumps([case[key] for key in _WORK], sort_keys=True)


def _not_comparable(first: File, second: File) -> list[Left]:
    """The cases that only one of two files has, or that were measured in another manner."""
    missing = [case for key, case in first.cases.items() if key not in second.cases]
    extra = [case for key, case in second.cases.items() if key not in first.cases]
    reasons, explained = [], set()
    for case in missing:
        near = next((e for e in extra if _work(e) == _work(case) and identity(e) not in explained), None)
        if near is None:
            reasons.append(_left(case, f"in {first.name}, not in {second.name}"))
            continue
        explained.add(identity(near))
        reasons.append(_left(case, "; ".join(
            f"{key} is {_shown(case, key)} in {first.name}, {_shown(near, key)} in {second.name}"
            for key in _MANNER if case[key] != near[key])))
    return reasons + [_left(case, f"in {second.name}, not in {first.name}")
                    for case in extra if identity(case) not in explained]


def _left(case: Mapping[str, Any], why: str) -> Left:
    return Left(case["op"], text.whole(case), why)


def _refusal(first: File, second: File, reasons: Sequence[Left]) -> str:
    lines = [f"  {left.case}: {left.why}" for left in reasons[:_SHOWN_REASONS]]
    if len(reasons) > _SHOWN_REASONS:
        lines.append(f"  and {len(reasons) - _SHOWN_REASONS} more")
    empty = "".join(f"\n  {f.path} has no cases" for f in (first, second) if not f.cases)
    pair = f"{first.path} ({first.name}) and {second.path} ({second.name})"
    return "\n".join([f"[compare] {pair} have no case in common{empty}", *lines])


def _warnings(files: Sequence[File], rows: Sequence[Row]) -> list[str]:
    warnings = [*_differing("duoln", files, [f.record["duoln"] for f in files]),
             *_differing("commit", files, [commit_words(f.record["git"]) for f in files])]
    for name in sorted({name for f in files for name in f.record["flags"]}):
        warnings += _differing(name, files, [f.record["flags"].get(name, "not set") for f in files])
    if all("tf32" in f.record["backend"] for f in files):
        warnings += _differing("tf32", files, [f.record["backend"]["tf32"] for f in files])
    rules = {}
    for row in rows:
        seen = [None if c is None else c.rule or "none" for c in row.cells]
        rules[row.case["op"], row.case["side"], *seen] = (f"rule of {row.case['op']}, {row.case['side']}", seen)
    for what, seen in rules.values():
        warnings += _differing(what, files, seen)
    return [*dict.fromkeys(warnings), *(warning for f in files for warning in _unsteady(f))]


def _unsteady(file: File) -> list[str]:
    """Warnings of a file whose samples vary too much: of its copies, which shares are taken of, and of its cases."""
    spreads = {text.whole(case): case["mad"] / case["median"] for case in file.cases.values()}
    copies = {text.whole(case) for case in file.cases.values() if case["op"] == _COPY}
    warnings = []
    for what, consequence, names in (
            ("a copy", "shares of a copy's bandwidth are not reliable", copies),
            ("cases", "differences of that size mean nothing", spreads.keys() - copies)):
        wide = {name: spreads[name] for name in names if spreads[name] > _WIDEST_SPREAD}
        if wide:
            most = max(sorted(wide), key=wide.__getitem__)
            warnings.append(f"spread of {what} in {file.name}: {len(wide)} of {len(names)} above {_WIDEST_SPREAD:.0%}, "
                            f"most {wide[most]:.0%} ({most}); {consequence}: measure again on a quiet machine")
    return warnings


def _varying(files: Sequence[File]) -> list[str]:
    """For each file of the first one's machine, how far times differ that no change of duoln could have changed."""
    first = files[0]
    lines = []
    for second in files[1:]:
        if any(first.record[key] != second.record[key] for key in ("host", "backend")):
            continue
        ratios = {text.whole(case): second.cases[key]["median"] / case["median"] for key, case in first.cases.items()
                  if key in second.cases and (case["op"] == _COPY or case["side"] != "duoln")}
        if ratios:
            away = {name: max(ratio, 1 / ratio) - 1 for name, ratio in ratios.items()}
            most = max(sorted(away), key=away.__getitem__)
            lines.append(f"{first.name} and {second.name} are of one machine: what no change of duoln changes (copies, "
                         f"peers; {len(away)} cases) differs by {statistics.median(away.values()):.0%} in the median, "
                         f"{away[most]:.0%} at most ({most}); smaller differences mean nothing")
        else:
            lines.append(f"{first.name} and {second.name} are of one machine, and have no copy and no peer in common "
                         "that would tell how far times vary; run one of them twice before a difference is believed")
    return lines


def _differing(what: str, files: Sequence[File], values: Sequence[str | None]) -> list[str]:
    """One warning if the values, where there are any, are not all the same."""
    known = [(value, f.name) for value, f in zip(values, files, strict=True) if value is not None]
    if len({value for value, _ in known}) < 2:
        return []
    return [f"{what}: {', '.join(f'{value} in {name}' for value, name in known)}"]


# Text -------------------------------------------------------------------------------------------------

def groups_table(comparison: Comparison) -> tuple[str, list[str], list[list[str]]]:
    """Title, headings and rows of the groups."""
    of_each = groups(comparison)
    sides = bool(text.varying([group._asdict() for group in of_each], ["side"]))
    rows = [[group.op + (f", {group.side}" if sides else ""),
             *("-" if mean is None else f"{mean.speedup:.2f}x ({mean.rows})" for mean in group.means)]
            for group in of_each]
    return (f"Speed-up over {comparison.files[0].heading}: geometric mean (rows)",
            ["group", *(file.heading for file in comparison.files[1:])], rows)


def table(comparison: Comparison) -> tuple[str, list[str], list[list[str]]]:
    """Title, headings and rows; each operator's rows follow a row with its name.

    The title has what all rows have in common, so that it needs no column.
    """
    cases = [row.case for row in comparison.rows]
    apart = text.varying(cases, ("side", *_MANNER))
    common = [_shown(cases[0], key) for key in ("side", *_MANNER) if key not in apart]
    headings = ["case", *apart, *(f.heading for f in comparison.files)]
    rows: list[list[str]] = []
    op = ""
    for row in comparison.rows:
        if row.case["op"] != op:
            op = row.case["op"]
            rows.append([op, *[""] * (len(headings) - 1)])
        rows.append([f"  {text.work(row.case)}", *(_shown(row.case, key) for key in apart),
                     *(_cell_text(cell, k) for k, cell in enumerate(row.cells))])
    return f"Time, speed-up over the first, share of a copy's bandwidth ({', '.join(common)})", headings, rows


def _shown(case: Mapping[str, Any], key: str) -> str:
    """The value of a key of a case, in words."""
    return text.CLOCKS[case[key]] if key == "clock" else str(case[key])


def remarks(comparison: Comparison) -> list[str]:
    """The warnings, and a line for each reason why cases are not comparable."""
    by_reason: dict[str, list[Left]] = {}
    for left in comparison.not_comparable:
        by_reason.setdefault(left.why, []).append(left)
    return [*comparison.variation, *(f"warning: {warning}" for warning in comparison.warnings),
            *(f"not comparable, {why}: {_counted(cases)}" for why, cases in by_reason.items())]


def _counted(cases: Sequence[Left]) -> str:
    """A case in words; of several, how many there are of each operator."""
    if len(cases) == 1:
        return cases[0].case
    of_each = Counter(left.op for left in cases)
    return f"{len(cases)} cases ({', '.join(f'{op} {number}' for op, number in of_each.items())}); --json names them"


def _cell_text(cell: Cell | None, column: int) -> str:
    if cell is None:
        return "-"
    parts = [text.duration(cell.seconds)]
    if column:
        parts.append(f"{cell.speedup:.2f}x")
    if cell.fraction_of_copy is not None:
        parts.append(text.share(cell.fraction_of_copy))
    return "  ".join(parts)
