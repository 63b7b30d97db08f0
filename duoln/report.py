"""What runs gave: curves beside each other as CSV, and as a picture where matplotlib is installed."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from duoln.checkpoint import write_atomically
from duoln.errors import CheckpointError
from duoln.runfolder import read_json, read_log, run_folders
from duoln.tasks.spec import Column, Dataset, Task


class Curve(NamedTuple):
    """One run: where it is, what it was, and its metrics by step."""

    path: Path
    task: str
    variant: str
    config: Mapping[str, Any]
    dataset: Dataset
    points: list[dict[str, Any]]
    result: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.variant}, batch {self.config['batch_size']}"


def read_curves(paths: Sequence[Path]) -> list[Curve]:
    """The runs in some folders (each a run, or a folder of runs).

    Raises:
        CheckpointError: a folder holds no run, or one without a log.
    """
    curves = []
    for path in paths:
        folders = run_folders(path)
        if not folders:
            raise CheckpointError(f"{path}: expected a run folder or a folder of runs, found "
                                  f"{'neither' if path.exists() else 'nothing there'}")
        for folder in folders:
            config = read_json(folder / "config.json")
            dataset, points, result = Dataset("unknown data", "synthetic"), {}, {}
            for entry in read_log(folder):
                if entry.get("event") == "start":
                    dataset = Dataset(**entry["dataset"])
                elif entry.get("event") == "evaluation":
                    points[entry["step"]] = entry  # a resumed run repeats steps: the last one counts
                elif entry.get("event") == "end":
                    result = entry
            curves.append(Curve(folder, config["task"], config["variant"], config["config"], dataset,
                                [points[step] for step in sorted(points)], result))
    return curves


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
    write_atomically(target, text.getvalue().encode())
    return target


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(task: Task, curves: Sequence[Curve], target: Path) -> Path:
    """The curves of a task's columns against epochs, one panel a column and batch size, like figure 6.

    A metric that spans a factor of ten or more has a logarithmic axis.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = sorted({c.config["batch_size"] for c in curves}, reverse=True)
    figure, panels = pyplot.subplots(len(task.columns), len(sizes), squeeze=False, sharex="col",
                                     figsize=(4.6 * len(sizes) + 0.6, 2.7 * len(task.columns) + 0.5))
    for column, size in enumerate(sizes):
        shown = [c for c in curves if c.config["batch_size"] == size]
        for row, metric in enumerate(task.columns):
            _panel(panels[row][column], metric, shown)
        labels = sorted({c.dataset.label for c in shown})
        panels[0][column].set_title(f"batch {size} ({', '.join(labels)})", fontsize=10)
        panels[-1][column].set_xlabel("epoch")
    panels[0][0].legend(fontsize=9)
    figure.suptitle(f"{task.title}: {task.paper}", fontsize=11)
    figure.tight_layout()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    pyplot.close(figure)
    write_atomically(target, content.getvalue())
    return target


def _panel(axes: Any, metric: Column, curves: Sequence[Curve]) -> None:
    values: list[float] = []
    for c in curves:
        ys = [p[metric.key] for p in c.points if metric.key in p]
        xs = [p["epoch"] for p in c.points if metric.key in p]
        axes.plot(xs, ys, marker="o" if len(xs) < 20 else None, markersize=3.5, label=c.variant)
        values += ys
    positive = [v for v in values if v > 0]
    if positive and max(positive) >= 10 * min(positive):
        axes.set_yscale("log")
    axes.set_ylabel(metric.heading)
    axes.grid(alpha=0.3)
