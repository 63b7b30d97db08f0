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
from duoln.bench.records import identity, load
from duoln.errors import UsageError
from duoln.runs.commit import commit_words
from duoln.runs.series import short_names

SCHEMA = "duoln-compare/1"
Case = Mapping[str, Any]
Table = tuple[str, list[str], list[list[str]]]
"""Title, headings and rows."""

_WORK = ("op", "pass", "shape", "settings", "side")
_MANNER = ("dtype", "cache", "clock")
_OF_FILE = ("label", "backend", "host", "copy_gbps")
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


class Row(NamedTuple):
    """One case, with its figures in each file; None for a file that does not have the case."""

    case: Case
    cells: list[dict[str, Any] | None]
    """Seconds, the speed-up over the first file, the share of a copy, the rule."""


class Comparison(NamedTuple):
    """The comparison of several files."""

    files: list[File]
    rows: list[Row]
    warnings: list[str]
    left: list[tuple[Case, str]]
    """Cases that are left out of the rows, or have an empty cell, and the reason why."""
    variation: list[str]
    """The variation between files of one machine, in words."""

    def as_json(self) -> dict[str, Any]:
        """The comparison as plain data, for programs."""
        return {
            "schema": SCHEMA,
            "files": [{"file": str(f.path), "name": f.name, **{key: f.record[key] for key in _OF_FILE}}
                      for f in self.files],
            "groups": groups(self),
            "rows": [{**{key: row.case[key] for key in (*_WORK, *_MANNER)}, "cells": row.cells} for row in self.rows],
            "warnings": self.warnings, "variation": self.variation,
            "not_comparable": [{"case": text.whole(case), "why": why} for case, why in self.left],
        }


def compare(paths: Sequence[Path]) -> Comparison:
    """Read and compare.

    Raises:
        DataError: a file is missing or malformed.
        UsageError: fewer than two files, another schema, or a file that has no case in common with the first.
    """
    if len(paths) < 2:
        raise UsageError(f"[compare] expected two files or more, found {len(paths)}")
    records = [load(path) for path in paths]
    labels = Counter(record["label"] for record in records)
    files = [File(path, f"#{k}", record["label"] + (f" ({name})" if labels[record["label"]] > 1 else ""), record,
                  {identity(case): case for case in record["cases"]})
             for k, (path, name, record) in enumerate(zip(paths, short_names(paths), records, strict=True), 1)]
    first, *others = files
    left: list[tuple[Case, str]] = []
    for second in others:
        reasons = _not_comparable(first, second)
        if not first.cases.keys() & second.cases.keys():
            raise UsageError(_refusal(first, second, reasons))
        left += reasons
    rows = [Row(case, [_cell(f.cases.get(key), case) for f in files]) for key, case in first.cases.items()
            if any(key in f.cases for f in others)]
    return Comparison(files, rows, _warnings(files, rows), left,
                      [line for second in others for line in _noise_lines(first, second)])


def groups(comparison: Comparison) -> list[dict[str, Any]]:
    """The rows of each operator, layer or task, and side: for each file after the first the geometric mean of their
    speed-ups and their number, or None.
    """
    members: dict[tuple[str, str], list[Row]] = {}
    for row in comparison.rows:
        members.setdefault((row.case["op"], row.case["side"]), []).append(row)
    made = []
    for (op, side), rows in members.items():
        columns = list(zip(*(row.cells for row in rows), strict=True))[1:]
        speedups = [[cell["speedup"] for cell in column if cell is not None] for column in columns]
        means = [{"speedup": statistics.geometric_mean(s), "rows": len(s)} if s else None for s in speedups]
        made.append({"op": op, "side": side, "means": means})
    return made


def _cell(case: Case | None, reference: Case) -> dict[str, Any] | None:
    return None if case is None else {
        "seconds": case["median"], "speedup": reference["median"] / case["median"],
        "fraction_of_copy": case["fraction_of_copy"], "rule": case["rule"]}


def _not_comparable(first: File, second: File) -> list[tuple[Case, str]]:
    """The cases that only one of two files has, or that were measured in another manner."""
    extra = {key: case for key, case in second.cases.items() if key not in first.cases}
    reasons = []
    for case in (case for key, case in first.cases.items() if key not in second.cases):
        near = next((key for key, each in extra.items() if _work(each) == _work(case)), None)
        if near is None:
            reasons.append((case, f"in {first.name}, not in {second.name}"))
            continue
        same = extra.pop(near)
        reasons.append((case, "; ".join(
            f"{key} is {_shown(case, key)} in {first.name}, {_shown(same, key)} in {second.name}"
            for key in _MANNER if case[key] != same[key])))
    return reasons + [(case, f"in {second.name}, not in {first.name}") for case in extra.values()]


def _work(case: Case) -> str:
    return json.dumps([case[key] for key in _WORK], sort_keys=True)


def _refusal(first: File, second: File, reasons: Sequence[tuple[Case, str]]) -> str:
    lines = [f"  {text.whole(case)}: {why}" for case, why in reasons[:_SHOWN_REASONS]]
    if len(reasons) > _SHOWN_REASONS:
        lines.append(f"  and {len(reasons) - _SHOWN_REASONS} more")
    empty = "".join(f"\n  {f.path} has no cases" for f in (first, second) if not f.cases)
    pair = f"{first.path} ({first.name}) and {second.path} ({second.name})"
    return "\n".join([f"[compare] {pair} have no case in common{empty}", *lines])


def _warnings(files: Sequence[File], rows: Sequence[Row]) -> list[str]:
    told: dict[str, list[Any]] = {"duoln": [f.record["duoln"] for f in files],
                                  "commit": [commit_words(f.record["git"]) for f in files]}
    for name in sorted({name for f in files for name in f.record["flags"]}):
        told[name] = [f.record["flags"].get(name, "not set") for f in files]
    if all("tf32" in f.record["backend"] for f in files):
        told["tf32"] = [f.record["backend"]["tf32"] for f in files]
    warnings = [line for what, values in told.items() for line in _differing(what, files, values)]
    for row in rows:
        rules = [None if cell is None else cell["rule"] or "none" for cell in row.cells]
        warnings += _differing(f"rule of {row.case['op']}, {row.case['side']}", files, rules)
    return [*dict.fromkeys(warnings), *(warning for f in files for warning in _unsteady(f))]


def _differing(what: str, files: Sequence[File], values: Sequence[str | None]) -> list[str]:
    """One warning if the values, where there are any, are not all the same."""
    known = [(value, f.name) for value, f in zip(values, files, strict=True) if value is not None]
    if len({value for value, _ in known}) < 2:
        return []
    return [f"{what}: {', '.join(f'{value} in {name}' for value, name in known)}"]


def _unsteady(file: File) -> list[str]:
    """Warnings of a file whose samples vary too much: of its copies, which shares are taken of, and of its cases."""
    warnings = []
    for what, consequence, are_copies in (
            ("a copy", "shares of a copy's bandwidth are not reliable", True),
            ("cases", "differences of that size mean nothing", False)):
        spreads = {text.whole(case): case["mad"] / case["median"] for case in file.cases.values()
                   if (case["op"] == _COPY) is are_copies}
        wide = [name for name, spread in spreads.items() if spread > _WIDEST_SPREAD]
        if wide:
            most = _most(spreads)
            warnings.append(f"spread of {what} in {file.name}: {len(wide)} of {len(spreads)} above "
                            f"{_WIDEST_SPREAD:.0%}, most {spreads[most]:.0%} ({most}); {consequence}: measure again on "
                            "a quiet machine")
    return warnings


def _most(figures: Mapping[str, float]) -> str:
    """The name of the largest figure, the first of equal ones."""
    return max(sorted(figures), key=figures.__getitem__)


def _noise_lines(first: File, second: File) -> list[str]:
    """In words, how far times of one machine differ that no change of duoln could have changed."""
    if any(first.record[key] != second.record[key] for key in ("host", "backend")):
        return []
    ratios = {text.whole(case): second.cases[key]["median"] / case["median"] for key, case in first.cases.items()
              if key in second.cases and (case["op"] == _COPY or case["side"] != "duoln")}
    if not ratios:
        return [f"{first.name} and {second.name} are of one machine, and have no copy and no peer in common "
                "that would tell how far times vary; run one of them twice before a difference is believed"]
    away = {name: max(ratio, 1 / ratio) - 1 for name, ratio in ratios.items()}
    most = _most(away)
    return [f"{first.name} and {second.name} are of one machine: what no change of duoln changes (copies, "
            f"peers; {len(away)} cases) differs by {statistics.median(away.values()):.0%} in the median, "
            f"{away[most]:.0%} at most ({most}); smaller differences mean nothing"]


# Text -------------------------------------------------------------------------------------------------

def groups_table(comparison: Comparison) -> Table:
    """A row for each group."""
    of_each = groups(comparison)
    sides = bool(text.varying(of_each, ["side"]))
    rows = [[group["op"] + (f", {group['side']}" if sides else ""),
             *("-" if mean is None else f"{mean['speedup']:.2f}x ({mean['rows']})" for mean in group["means"])]
            for group in of_each]
    return (f"Speed-up over {comparison.files[0].heading}: geometric mean (rows)",
            ["group", *(file.heading for file in comparison.files[1:])], rows)


def table(comparison: Comparison) -> Table:
    """A row for each case; each operator's rows follow a row with its name.

    The title has what all rows have in common, so that it needs no column.
    """
    cases = [row.case for row in comparison.rows]
    apart = text.varying(cases, ("side", *_MANNER))
    common = [_shown(cases[0], key) for key in ("side", *_MANNER) if key not in apart]
    headings = ["case", *apart, *(f.heading for f in comparison.files)]
    rows: list[list[str]] = []
    op = ""
    for case, cells in comparison.rows:
        if case["op"] != op:
            op = case["op"]
            rows.append([op, *[""] * (len(headings) - 1)])
        rows.append([f"  {text.work(case)}", *(_shown(case, key) for key in apart),
                     *(_cell_text(cell, k) for k, cell in enumerate(cells))])
    return f"Time, speed-up over the first, share of a copy's bandwidth ({', '.join(common)})", headings, rows


def _shown(case: Case, key: str) -> str:
    """The value of a key of a case, in words."""
    return text.CLOCKS[case[key]] if key == "clock" else str(case[key])


def _cell_text(cell: Mapping[str, Any] | None, column: int) -> str:
    if cell is None:
        return "-"
    share = cell["fraction_of_copy"]
    return "  ".join([text.duration(cell["seconds"]), *([f"{cell['speedup']:.2f}x"] if column else []),
                      *([] if share is None else [text.share(share)])])


def remarks(comparison: Comparison) -> list[str]:
    """The variation, the warnings, and a line for each reason why cases are not comparable."""
    by_reason: dict[str, list[Case]] = {}
    for case, why in comparison.left:
        by_reason.setdefault(why, []).append(case)
    return [*comparison.variation, *(f"warning: {warning}" for warning in comparison.warnings),
            *(f"not comparable, {why}: {_counted(cases)}" for why, cases in by_reason.items())]


def _counted(cases: Sequence[Case]) -> str:
    """A case in words; of several, how many there are of each operator."""
    if len(cases) == 1:
        return text.whole(cases[0])
    of_each = Counter(case["op"] for case in cases)
    return f"{len(cases)} cases ({', '.join(f'{op} {number}' for op, number in of_each.items())}); --json names them"
