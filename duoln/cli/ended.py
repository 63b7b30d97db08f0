"""The output of `duoln run` at its end: tables, files of curves, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from duoln.cli.curves import write_curves, write_layers

if TYPE_CHECKING:
    from duoln.backends.protocol import Backend
    from duoln.runs.series import By
    from duoln.runs.settings import Job
    from duoln.tasks.task import Task
    from duoln.tasks.values import Dataset


class Ended(NamedTuple):
    """One run of the command."""

    job: Job
    dataset: Dataset
    status: str
    """"done", "interrupted", "diverged" or "failed"."""
    figures: Mapping[str, Any]


def show_ended(task: Task, backend: Backend, ended: Sequence[Ended], top: Path, as_json: bool,
               error: Mapping[str, Any] | None = None) -> None:
    """Write the curves of the runs, and show their figures: a table for each data set.

    Args:
        task, backend: of the runs.
        ended: the runs.
        top: the folder that holds them.
        as_json: stdout gets one JSON object, and stderr the tables.
        error: the error with which the command ends, for the JSON object.
    """
    from duoln.cli import console
    from duoln.pictures import drawing
    from duoln.runs.curves import read_curves
    from duoln.runs.series import series_of

    by: By = "seed" if len({run.figures["seed"] for run in ended}) > 1 else "run"
    written: list[Path] = []
    try:  # the files come first: stdout may be closed
        curves = read_curves([top])
        written += [*write_curves(task, series_of(task, curves, by), top, by), *write_layers(task, curves, top)]
    finally:  # a file or picture that fails does not cost the table
        for dataset in dict.fromkeys(run.dataset for run in ended):
            _show_table(task, dataset, [run for run in ended if run.dataset == dataset], top, by, not as_json)
    console.say(f"run folder: {top}  ({', '.join(p.name for p in written)})")
    if not drawing.can_draw():
        console.say(f"  for a picture of the curves: {drawing.refusal()}")
    if as_json:
        datasets = {run.dataset for run in ended}
        console.put_json({
            "dataset": next(iter(datasets))._asdict() if len(datasets) == 1 else None, "backend": backend.name,
            "device": backend.device,
            "results": [{**run.figures, "status": run.status, "dataset": run.dataset._asdict()} for run in ended],
            **({} if error is None else {"error": error})})


def _show_table(task: Task, dataset: Dataset, ended: Sequence[Ended], top: Path, by: By, data: bool) -> None:
    from duoln.cli import console
    from duoln.cli.report import result_row, told_apart
    from duoln.runs.curves import read_curves
    from duoln.runs.series import ENDINGS, series_of

    if by == "seed":
        series = series_of(task, read_curves([top / run.job.name for run in ended]), by)
        for line in (line for s in series for line in s.remarks()):
            console.say(line, style="yellow")
        console.show_results(task, dataset, [result_row(task, s) for s in series], told_apart(series, by), data=data)
        return
    endings = [run.status if run.status in ENDINGS else "" for run in ended]
    apart = {"ended": endings} if any(endings) else {}
    console.show_results(task, dataset, [run.figures for run in ended], apart, data=data)
