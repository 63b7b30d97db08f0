"""What runs gave: curves beside each other as CSV, and as a picture where matplotlib is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.errors import CheckpointError, DataFormatError
from duoln.pictures.drawing import figure
from duoln.runs.folder import read_json, run_folders
from duoln.runs.log import read_log
from duoln.system.filesystem import write_own
from duoln.tasks.task import Task
from duoln.tasks.values import Column, Dataset, split_columns

_STRETCHES = 60
"""Points of a smoothed curve."""
_TALL, _ACROSS = 5, 3
"""Panels that stand below each other at most; more of one batch size stand so many side by side."""
_FEW = 20
"""Points that are worth a mark each."""


class Curve(NamedTuple):
    """One run: where it is, what it was, and its metrics and training losses by step."""

    path: Path
    task: str
    variant: str
    config: Mapping[str, Any]
    dataset: Dataset
    points: list[dict[str, Any]]
    losses: list[tuple[int, float]]
    result: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.variant}, batch {self.config['batch_size']}"


def read_curves(paths: Sequence[Path]) -> list[Curve]:
    """The runs in some folders (each a run, or a folder of runs).

    Raises:
        CheckpointError: a folder holds no run, or one without a log.
        DataFormatError: a file of a run is damaged.
    """
    curves = []
    for path in paths:
        folders = run_folders(path)
        if not folders:
            raise CheckpointError(f"{path}: expected a run folder or a folder of runs, found "
                                  f"{'neither' if path.exists() else 'nothing there'}")
        for folder in folders:
            config = _read_config(folder / "config.json")
            dataset = Dataset("unknown data", "synthetic")
            points: dict[int, dict[str, Any]] = {}
            losses: dict[int, float] = {}
            result: dict[str, Any] = {}
            for number, entry in enumerate(read_log(folder), start=1):
                _check_entry(f"{folder / 'log.jsonl'}, entry {number}", entry)
                if entry.get("event") == "start":
                    dataset, result = Dataset(**entry["dataset"]), {}  # a resumed run has no result until it ends
                elif entry.get("event") == "evaluation":
                    points[entry["step"]] = entry  # a resumed run repeats steps: the last one counts
                elif entry.get("event") == "step":
                    losses[entry["step"]] = entry["loss"]
                elif entry.get("event") == "end":
                    result = entry
            curves.append(Curve(folder, config["task"], config["variant"], config["config"], dataset,
                                [points[step] for step in sorted(points)], sorted(losses.items()), result))
    return curves


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(path)
    for key, kind, words in (("task", str, "a text"), ("variant", str, "a text"), ("config", dict, "an object")):
        _check(path, key, isinstance(config.get(key), kind), words, config.get(key))
    size = config["config"].get("batch_size")
    _check(path, "batch_size", isinstance(size, int) and not isinstance(size, bool), "a whole number", size)
    return config


def _check_entry(where: str, entry: Mapping[str, Any]) -> None:
    """Raises DataFormatError unless an entry of a log has what curves are made of."""
    event, step = entry.get("event"), entry.get("step")
    if event == "start":
        found = entry.get("dataset")
        good = isinstance(found, dict) and found.keys() == set(Dataset._fields) and all(
            isinstance(value, str) for value in found.values())
        _check(where, "dataset", good, f"an object of the texts {', '.join(Dataset._fields)}", found)
    if event in ("step", "evaluation"):
        _check(where, "step", isinstance(step, int) and not isinstance(step, bool), "a whole number", step)
        for key in ("loss",) if event == "step" else (*({"epoch", "wall_s"} - entry.keys()), *entry):
            value = entry.get(key)
            _check(where, key, key == "event" or (isinstance(value, int | float) and not isinstance(value, bool)),
                   "a number", value)


def _check(file: object, key: str, holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise DataFormatError(file, 0, f"{expected} as {key}", f"{found!r:.60}")


def write_csv(curves: Sequence[Curve], target: Path) -> Path:
    """All evaluations of all runs as one table."""
    keys = sorted({key for c in curves for p in c.points for key in p} - {"event"})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "variant", "batch_size", "dataset", "rung", *keys])
    for c in curves:
        for p in c.points:
            writer.writerow([c.path.name, c.variant, c.config["batch_size"], c.dataset.name, c.dataset.rung,
                             *(p.get(key, "") for key in keys)])
    write_own(target, text.getvalue().encode())
    return target


def draw(task: Task, curves: Sequence[Curve], target: Path) -> Path:
    """The curves of a task's columns, one panel a column and batch size, like the paper's figures.

    The horizontal axis is the task's: epochs, or updates with the training loss in a panel of its own. A
    metric that spans a factor of ten or more has a logarithmic axis. The paper's curves, where the task has them, stand
    in panels to the right, with an axis of their own.
    """
    sizes = sorted({c.config["batch_size"] for c in curves}, reverse=True)
    by_step, published = task.x_axis == "step", task.reference_curves()
    metrics, levels = split_columns(task.columns)
    headings = {c.key: c.heading for c in levels}
    colours = {variant: f"C{k}" for k, variant in enumerate(task.variants)}
    count = len(metrics) + by_step
    across = _ACROSS if len(sizes) == 1 and count > _TALL and not published else 1
    rows, columns = -(-count // across), len(sizes) * across + bool(published)
    with figure(target, rows, columns, (4.6 * columns + 0.6, 2.7 * rows + 0.5),
                sharex="all" if across > 1 else "col") as (whole, grid):
        for place, size in enumerate(sizes):
            panels = [axes for row in grid for axes in row[place * across:(place + 1) * across]]
            shown = [c for c in curves if c.config["batch_size"] == size]
            if by_step:
                _panel(panels[0], "training loss", {c.variant: _smooth(c.losses) for c in shown}, colours)
            for axes, metric in zip(panels[int(by_step):], metrics, strict=False):
                _panel(axes, metric.heading, {c.variant: [(p[task.x_axis], p[metric.key]) for p in c.points
                                                          if metric.key in p] for c in shown}, colours)
                level = next((p[metric.level] for c in shown for p in c.points[-1:] if metric.level in p), None)
                if level is not None:
                    axes.axhline(level, color="0.4", linestyle=":", label=headings[metric.level])
                    axes.legend(fontsize=8)
            for axes in panels[count:]:
                axes.set_visible(False)
            for axes in panels[count - across:count]:
                axes.set_xlabel("updates" if by_step else "epoch")
                axes.tick_params(labelbottom=True)
            labels = sorted({c.dataset.label for c in shown})
            panels[0].set_title(f"batch {size} ({', '.join(labels)})", fontsize=10)
        grid[0][0].legend(fontsize=9)
        if published:
            _draw_published([line[-1] for line in grid[int(by_step):]], task, metrics, colours)
            grid[0][-1].set_visible(not by_step)
        whole.suptitle(f"{task.title}: {task.paper}", fontsize=11)
    return target


def _draw_published(panels: Sequence[Any], task: Task, metrics: Sequence[Column], colours: Mapping[str, str]) -> None:
    """The paper's curves, each metric beside ours; panels of which the paper has none stay empty."""
    for axes, metric in zip(panels, metrics, strict=True):
        lines = {c.variant: c.points for c in task.reference_curves() if c.metric == metric.key}
        axes.set_visible(bool(lines))
        if lines:
            _panel(axes, metric.heading, lines, colours)
            axes.set_title(f"the paper's ({task.paper}), read off", fontsize=10)
            axes.set_xlabel("updates" if task.x_axis == "step" else "epoch")
            axes.xaxis.set_tick_params(labelbottom=True)
            axes.locator_params(axis="x", nbins=5)
            axes.legend(fontsize=9)


def _smooth(losses: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Means over stretches of the run, so that a curve can be seen in the noise of single batches."""
    width = max(len(losses) // _STRETCHES, 1)
    stretches = [losses[i:i + width] for i in range(0, len(losses) - width + 1, width)]
    return [(sum(x for x, _ in part) / width, sum(y for _, y in part) / width) for part in stretches]


def _panel(axes: Any, heading: str, lines: Mapping[str, Sequence[tuple[float, float]]],
           colours: Mapping[str, str]) -> None:
    values = [y for line in lines.values() for _, y in line]
    for label, line in lines.items():
        axes.plot([x for x, _ in line], [y for _, y in line], marker="o" if len(line) < _FEW else None, markersize=3.5,
                  label=label, color=colours.get(label))
    if values and 0 < 10 * min(values) <= max(values):
        axes.set_yscale("log")
    axes.set_ylabel(heading)
    axes.grid(alpha=0.3)
