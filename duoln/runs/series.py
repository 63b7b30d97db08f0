"""Series, each drawn and printed as one: a run, or the runs of one setting with several seeds; names; a table."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from duoln.data.text import csv_text
from duoln.runs.curve import Curve
from duoln.runs.folder import folder_name
from duoln.runs.precision import FLOAT32
from duoln.system.filesystem import write_own
from duoln.tasks.task import Task

By = Literal["run", "seed"]
POOLED = {"task": "code of the task", "data": "data read"}
"""The parts of an identity that runs of several seeds have in common, what is trained and on what; and their headings
where other runs of the same settings have others."""
_OF_ONE_SEED = "batches"
"""The part of an identity that follows from the seed."""
ENDINGS = ("diverged", "failed")
"""The states of a run that its figures are to be read with: they are those of its last evaluation before that."""
_ABSENT = object()


def metric(key: str, x_axis: str) -> Callable[[Curve], list[tuple[float, float]]]:
    """A function that gives a run's values of a metric along an axis, "epoch" or "update"."""
    return lambda curve: [(p[x_axis], p[key]) for p in curve.points if key in p]


class Range(NamedTuple):
    """A figure of several runs. Those in which it is NaN are left out and counted; it is NaN where it is so in all."""

    median: float
    low: float
    high: float
    nan: int = 0


class Point(NamedTuple):
    """A place of a curve, by the rule of `Range`: `low` and `high` are `y` itself where one run has the curve."""

    x: float
    y: float
    low: float
    high: float
    nan: int = 0


def range_of(values: Sequence[float]) -> Range:
    """The median and the range of some values."""
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return Range(math.nan, math.nan, math.nan, len(values))
    return Range(statistics.median(numbers), min(numbers), max(numbers), len(values) - len(numbers))


class Series(NamedTuple):
    """One curve of a report.

    `name` is the shortest end of the folder's path that no other run of the report has; for several seeds, their
    number. `differences` are the settings, as text, in which the series of the report differ.
    """

    name: str
    variant: str
    differences: Mapping[str, str]
    runs: Sequence[Curve]
    older: Sequence[Curve] = ()
    """Runs that are left out, because a newer run has their seed."""

    def label(self, without: Iterable[str] = ()) -> str:
        """The variant, the settings in which it differs, and its folder where that says more.

        Args:
            without: settings that the reader sees elsewhere.
        """
        hidden = set(without)
        settings = [f"{key} {value}" for key, value in self.differences.items() if key not in hidden]
        parts = Path(self.name).parts
        folder = "/".join(parts[:-1] if len(parts) > 1 and parts[-1] == self.variant else parts)
        told = {self.variant, folder_name(self.variant, self.differences)}
        return ", ".join([self.variant, *settings]) + ("" if folder in told else f" ({folder})")

    def points(self, value: Callable[[Curve], Iterable[tuple[float, float]]]) -> list[Point]:
        """The values of a curve of each run: themselves, or the median and the range of the runs that have a place."""
        places: dict[float, list[float]] = {}
        for run in self.runs:
            for x, y in value(run):
                places.setdefault(x, []).append(y)
        return [Point(x, *range_of(ys)) for x, ys in sorted(places.items())]

    def changes(self) -> list[str]:
        """In words, what the bits of its runs depend on that was not the same in all updates of a run."""
        return list(dict.fromkeys(change for run in self.runs for change in run.changes))

    def figure(self, key: str) -> float | Range | None:
        """A metric of the runs' results; the range and the median where there are several."""
        values = [run.last[key] for run in self.runs if key in run.last]
        if len(self.runs) == 1 or not values:
            return values[0] if values else None
        return range_of(values)

    def length(self, key: str) -> float | Range:
        """The updates ("update") or epochs to the runs' results; a range where the runs differ."""
        values = [run.last[key] for run in self.runs]
        of_all = range_of(values)
        return of_all if of_all.low < of_all.high else of_all.low

    def time(self, x_axis: str) -> tuple[str, str]:
        """A heading and the median time of the runs: of an update where curves are drawn against these, or an epoch."""
        if x_axis == "update":
            return "ms/update", f"{1e3 * statistics.median(run.seconds_per_update for run in self.runs):.1f}"
        return "s/epoch", f"{statistics.median(run.seconds_per_epoch for run in self.runs):.2f}"

    def ended(self) -> str:
        """In words, which of its runs ended before their time for a reason of `ENDINGS`; empty if none did."""
        statuses = Counter(run.result.get("status") for run in self.runs)
        of = f" of {len(self.runs)}" if len(self.runs) > 1 else ""
        return ", ".join(f"{status} ({statuses[status]}{of})" if of else status
                         for status in ENDINGS if statuses[status])

    def seed_differences(self) -> list[str]:
        """In words, what the bits of its runs depend on, besides their seeds, that is not the same in all runs."""
        keys = dict.fromkeys(key for run in self.runs for key in run.identity if key != _OF_ONE_SEED)
        lines = []
        for key in keys:
            seeds: dict[str, list[str]] = {}
            for run in self.runs:
                seeds.setdefault(run.identity.get(key, "none"), []).append(str(run.config.get("seed")))
            if len(seeds) > 1:
                told = "; ".join(f"{value} (seed {', '.join(of_value)})" for value, of_value in seeds.items())
                lines.append(f"the seeds of {self.label()} differ in {key}: {told}")
        return lines

    def left_out(self) -> list[str]:
        """In words, the runs that are left out."""
        return [f"{run.path} is left out: a newer run has seed {run.config.get('seed')} of {self.label()}"
                for run in self.older]

    def remarks(self) -> list[str]:
        """In words, what a reader of its figures must know about the choice of its runs."""
        apart = [heading for heading in POOLED.values() if heading in self.differences]
        seeds = ", ".join(str(run.config.get("seed")) for run in self.runs)
        return [*self.left_out(), *self.seed_differences(), *(
            f"seed {seeds} of {self.variant} is not pooled with seeds that differ in {heading}" for heading in apart)]


def series_of(task: Task, curves: Sequence[Curve], by: By = "run") -> list[Series]:
    """One series for each run, or for the runs that differ in nothing but the seed; in the order of the variants.

    Of several runs of one seed, a series has the one that was started last.
    """
    order = {variant: k for k, variant in enumerate(task.variants)}
    curves = sorted(curves, key=lambda c: order.get(c.variant, len(order)))
    if by == "run":
        differing = differing_settings(task, curves)
        return [Series(name, c.variant, _values(c, differing), [c])
                for name, c in zip(short_names([c.path for c in curves]), curves, strict=True)]
    groups: dict[str, dict[Any, list[Curve]]] = {}
    for c in curves:
        groups.setdefault(repr(setting_of(c)), {}).setdefault(c.config.get("seed"), []).append(c)
    made = []
    for of_seeds in groups.values():
        ordered = [sorted(runs, key=lambda run: str(run.starts[-1].get("time", "")) if run.starts else "")
                   for runs in of_seeds.values()]  # by the time of their last start
        newest, older = [runs[-1] for runs in ordered], [c for runs in ordered for c in runs[:-1]]
        name = newest[0].variant if len(newest) == 1 else f"{len(newest)} seeds"
        made.append(Series(name, newest[0].variant, {}, newest, older))
    differing = [key for key in differing_settings(task, [s.runs[0] for s in made]) if key != "seed"]
    return [s._replace(differences={**_values(s.runs[0], differing), **_distinguishing_facts(s, made)}) for s in made]


def _distinguishing_facts(series: Series, all_series: Sequence[Series]) -> dict[str, str]:
    """The texts that tell a series from others of the same settings, by heading."""
    of_settings = [each.runs[0] for each in all_series
                   if setting_of(each.runs[0])[:3] == setting_of(series.runs[0])[:3]]
    return {heading: series.runs[0].identity.get(key, "not noted") for key, heading in POOLED.items()
            if len({run.identity.get(key) for run in of_settings}) > 1}


def setting_of(curve: Curve) -> tuple[Any, ...]:
    """The common part of runs that are pooled: all settings but the seed, the code of the task, and the data."""
    settings = sorted((key, value) for key, value in curve.config.items() if key != "seed")
    return (curve.variant, curve.dataset, settings, *(curve.identity.get(key) for key in POOLED))


def differing_settings(task: Task, curves: Sequence[Curve]) -> list[str]:
    """The settings whose values differ between runs, but for those that follow from the variant."""
    keys = dict.fromkeys(key for c in curves for key in c.config)
    by_variant = {key for overrides in task.variants.values() for key in overrides}
    differing = []
    for key in keys:
        values = {(c.variant, repr(c.config.get(key, _ABSENT))) for c in curves}
        follows = key in by_variant and max(Counter(variant for variant, _ in values).values()) == 1
        if len({value for _, value in values}) > 1 and not follows:
            differing.append(key)
    return differing


def _values(curve: Curve, keys: Iterable[str]) -> dict[str, str]:
    usual = {"precision": FLOAT32}
    return {key: str(curve.config.get(key, usual.get(key, "not set"))) for key in keys}


def short_names(paths: Sequence[Path]) -> list[str]:
    """For each folder the last parts of its path: as few as make every name of the report unique."""
    whole = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, whole), default=1) + 1):
        ends = [parts[-depth:] for parts in whole]
        if len(set(ends)) == len(set(whole)):
            return ["/".join(parts) for parts in ends]
    return [str(path) for path in paths]


# The table ----------------------------------------------------------------------------------------------

_NAMES = ("run", "variant", "batch_size", "dataset", "provenance")


def write_csv(series: Sequence[Series], target: Path, by: By = "run") -> Path:
    """Write a line for each evaluation.

    `run` names the run, as the table and the picture do; a column follows for each setting in which the runs differ,
    `setting KEY` where another column has the name of the setting.
    By seed, a line is for all runs of a setting: `seeds` is the number of their seeds at that update, each metric is a
    median, `METRIC_low` and `METRIC_high` are the least and the greatest value, and `METRIC_nan` is the number of runs
    in which it is NaN, which the three leave out.
    """
    settings = list(dict.fromkeys(key for s in series for key in s.differences if key != "batch_size"))
    metrics = sorted({key for s in series for c in s.runs for p in c.points for key in p} - {"event"})
    of_metrics = metrics if by == "run" else ["seeds", *(f"{key}{end}" for key in metrics for end in _ends(key))]
    others = {*_NAMES, *of_metrics}
    rows: list[Sequence[Any]] = [[*_NAMES, *(f"setting {key}" if key in others else key for key in settings),
                                  *of_metrics]]
    for s in series:
        first = s.runs[0]
        named = [s.name if by == "run" else s.label(), s.variant, first.config["batch_size"], *first.dataset,
                 *(s.differences.get(key, "") for key in settings)]
        of_runs = ([point.get(key, "") for key in metrics] for curve in s.runs for point in curve.points)
        for row in of_runs if by == "run" else _seeds(s, metrics):
            rows.append([*named, *row])
    write_own(target, csv_text(rows).encode())
    return target


def _ends(metric: str) -> tuple[str, ...]:
    return ("",) if metric == "update" else ("", "_low", "_high", "_nan")


def _seeds(series: Series, metrics: Sequence[str]) -> Iterator[list[Any]]:
    ranges = {key: {p.x: p for p in series.points(metric(key, "update"))} for key in metrics}
    for at in sorted({p["update"] for c in series.runs for p in c.points}):
        row: list[Any] = [len({c.config.get("seed") for c in series.runs if any(p["update"] == at for p in c.points)})]
        for key in metrics:
            point = ranges[key].get(at)
            if key == "update":
                row.append(at)
            else:
                row += ["", "", "", ""] if point is None else point[1:]
        yield row
