"""The times that were measured on each machine: ranges of medians, and their ratios to PyTorch's in the same run.

`machines.jsonl` beside this file has a line for each machine and work. Its samples were not kept:

    label       the machine
    command     what measured it
    machine     {"cpu", "cores", "vectors", "copy_gbps": [low, high], "product_gflops": [low, high]}
    op, pass, shape, settings      the work, as in a record (`duoln.bench.records`)
    seconds     [low, high] of the medians of several runs
    ratio       {side: [low, high]}, duoln's time over that of the side; the names of sides are those of a record
    peak_mib    {side: [low, high]} or no such key

Lines of `duoln bench ... --append FILE.jsonl`, which have all samples, join them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.bench import text
from duoln.bench.records import load_timings
from duoln.data.json_text import parse_json

FILE = Path(__file__).with_name("machines.jsonl")
OURS = "duoln"
_AS_INSTALLED = " as installed"
_COPY = "copy"


class Range(NamedTuple):
    """The least and the largest of some figures."""

    low: float
    high: float

    def with_value(self, value: float) -> Range:
        """The range that has this value too."""
        return Range(min(self.low, value), max(self.high, value))


class Work(NamedTuple):
    """One piece of work on one machine."""

    machine: str
    name: str
    seconds: Range
    ratios: dict[str, Range]
    """The ratio of duoln's time to each side's, by the side's name."""


def measured(files: Sequence[Path] = ()) -> dict[str, list[Work]]:
    """The work of each machine, by the files of timings; without files, what is known so far.

    Raises:
        DataError: a file cannot be read, or a line of it is no timing.
    """
    works = _of_timings([line for file in files for line in load_timings(file)]) if files else [
        Work(line["label"], _name(line), Range(*line["seconds"]),
             {side: Range(*ratio) for side, ratio in line["ratio"].items()})
        for line in map(parse_json, FILE.read_bytes().splitlines())]
    machines: dict[str, list[Work]] = {}
    for work in works:
        machines.setdefault(work.machine, []).append(work)
    return machines


def table(works: Iterable[Work]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of one machine. What PyTorch takes as it is installed is in the records alone."""
    rows = []
    for work in works:
        ratios = [f"{shares(ratio)} {side}" for side, ratio in work.ratios.items() if not side.endswith(_AS_INSTALLED)]
        rows.append([work.name, times(work.seconds), "\n".join(ratios) or "-"])
    return ["work", "duoln", "duoln / side"], rows


def times(seconds: Range) -> str:
    """A range of times, with one unit."""
    low, high = (text.duration(value) for value in seconds)
    (first, unit), (last, of_last) = low.split(" "), high.split(" ")
    if low == high:
        return low
    return f"{first}-{last} {unit}" if unit == of_last else f"{low} - {high}"


def shares(ratio: Range) -> str:
    """A range of ratios."""
    low, high = (f"{value:.2f}" for value in ratio)
    return low if low == high else f"{low}-{high}"


def _name(case: Mapping[str, Any]) -> str:
    return f"{case['op']} {text.work(case)}"


def _of_timings(lines: Sequence[Mapping[str, Any]]) -> list[Work]:
    """The work of timings. Sides are compared within a record, which has one time of day."""
    ours = {(_key(line), line["machine"]["time"]): line["median"] for line in lines
            if line["side"] == OURS and line["op"] != _COPY}
    works: dict[tuple[str, str], Work] = {}
    for (key, _), median in ours.items():
        work = works.setdefault(key, Work(*key, Range(median, median), {}))
        works[key] = work._replace(seconds=work.seconds.with_value(median))
    for line in lines:
        mine = ours.get((_key(line), line["machine"]["time"]))
        if line["side"] != OURS and mine is not None:
            ratio, ratios = line.get("ratio", mine / line["median"]), works[_key(line)].ratios
            ratios[line["side"]] = ratios.get(line["side"], Range(ratio, ratio)).with_value(ratio)
    return list(works.values())


def _key(line: Mapping[str, Any]) -> tuple[str, str]:
    return line["label"], _name(line) + (", warm" if line["cache"] == "warm" else "")
