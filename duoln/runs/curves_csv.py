"""All evaluations of a report as one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from duoln.data.csv_text import csv_text
from duoln.runs.series import By, Series, metric
from duoln.system.filesystem import write_own

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
    return ("",) if metric == "step" else ("", "_low", "_high", "_nan")


def _seeds(series: Series, metrics: Sequence[str]) -> Iterator[list[Any]]:
    ranges = {key: {p.x: p for p in series.points(metric(key, "step"))} for key in metrics}
    for step in sorted({p["step"] for c in series.runs for p in c.points}):
        row: list[Any] = [len({c.config.get("seed") for c in series.runs if any(p["step"] == step for p in c.points)})]
        for key in metrics:
            point = ranges[key].get(step)
            if key == "step":
                row.append(step)
            else:
                row += ["", "", "", ""] if point is None else point[1:]
        yield row
