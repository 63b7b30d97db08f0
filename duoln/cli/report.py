"""`duoln report`, and the files and tables of runs that it shares with `duoln run`."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duoln import runtime
from duoln.cli import console, facts
from duoln.core.arguments import did_you_mean
from duoln.errors import PluginError, TaskError, UsageError
from duoln.pictures import drawing
from duoln.runs import norm_stats
from duoln.runs.curve import NO_METRICS, Curve
from duoln.runs.curves import read_curves
from duoln.runs.series import (
    POOLED,
    By,
    Point,
    Range,
    Series,
    differing_settings,
    metric,
    series_of,
    short_names,
    write_csv,
)
from duoln.system.filesystem import check_regular, make_folder, temporary_folder
from duoln.system.paths import path_argument
from duoln.system.visible import visible
from duoln.tasks import registry
from duoln.tasks.task import Task
from duoln.tasks.values import Column, split_columns

if TYPE_CHECKING:
    from duoln.runs.page import Part

CURVES = ("curves.csv", "curves.png")
LAYERS = ("norm_stats.csv", "norm_stats.png")
"""Files of runs that watched the statistics of their layers."""
_BESIDE = 4
"""The most runs that one picture of the layers shows."""
_PAGES = (".html", ".htm")


def add_command(commands: Any) -> None:
    """Add `report` to the command line."""
    report = commands.add_parser("report", help="figures and curves of finished or running runs")
    report.add_argument("runs", nargs="+", type=path_argument, metavar="RUN", help="a run folder, or a folder of runs")
    report.add_argument("--by", choices=("run", "seed"), default="run",
                        help="a curve and a row for each run, or for each setting: the median and range of its seeds")
    report.add_argument("--out", type=path_argument, metavar="DIR",
                        help=f"write {' and '.join(CURVES)} there, of several tasks in a folder for each; without this "
                             "nothing is written")
    report.add_argument("--html", type=path_argument, metavar="FILE.html",
                        help="write one page that any browser opens: table, curves and settings")
    report.add_argument("--markdown", action="store_true", help="the table as text for a README, on stdout")
    report.add_argument("--over", metavar="KEY", help="with --markdown: this metric at several updates instead")
    facts.add_plugin_option(report)
    report.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    report.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> int:
    from duoln.runs.page import Part

    if args.over is not None and not args.markdown:
        raise UsageError("[report] --over: expected --markdown too")
    if args.markdown and args.json:
        raise UsageError("[report] expected --markdown or --json, because stdout has one result; found both")
    if args.html is not None and args.html.suffix.lower() not in _PAGES:
        raise UsageError(f"[report] expected a page's name, which ends in {' or '.join(_PAGES)}; found {args.html}")
    parts = [Part(task, series_of(task, curves, args.by)) for task, curves in runs_by_task(args.runs, args.plugins)]
    for line in (line for part in parts for s in part.series for line in s.remarks()):
        console.say(line, style="yellow")
    failed = _write(parts, args)  # first: stdout may be closed
    for part in parts:
        _show(part, args, alone=len(parts) == 1)
    if args.json:
        console.put_json({"runs": [
            {"run": str(c.path), "name": s.name, "label": s.label(), "task": c.task, "variant": c.variant,
             "dataset": c.dataset._asdict(), "differences": dict(s.differences), "config": dict(c.config),
             "evaluations": c.points, "result": c.result, "changes": c.changes}
            for part in parts for s in part.series for c in s.runs]})
    elif args.out is None and args.html is None and not args.markdown:
        console.say(f"for {' and '.join(CURVES)}: --out DIR; for one page with table and curves: --html FILE.html")
    if failed:
        raise failed[0]  # the table and the curves are there
    return 0


def _show(part: Part, args: argparse.Namespace, alone: bool) -> None:
    """The tables of a task: one for each data set, because figures on different data are never beside each other."""
    task = part.task
    if args.markdown and not alone:
        console.put(f"**{task.title}**\n")
    for dataset in dict.fromkeys(c.dataset for s in part.series for c in s.runs):
        of_dataset = _differing([s for s in part.series if s.runs[0].dataset == dataset], task)
        rows = [result_row(task, s) for s in of_dataset]
        if args.markdown:
            columns = distinguishing_columns(of_dataset, args.by)
            console.put(results_in_markdown(task, rows, columns) if args.over is None else
                        over_time(task, of_dataset, args.over))
        else:
            console.show_results(task, dataset, rows, distinguishing_columns(of_dataset, args.by), data=not args.json)


def _differing(series: Sequence[Series], task: Task) -> list[Series]:
    """The series of one table, without the settings that differ only from those of another table."""
    keys = [*differing_settings(task, [s.runs[0] for s in series]), *POOLED.values()]
    return [s._replace(differences={key: s.differences[key] for key in keys if key in s.differences}) for s in series]


def _write(parts: Sequence[Part], args: argparse.Namespace) -> list[TaskError]:
    """The files that the command line asks for; those of several tasks are in a folder for each.

    Returns the errors of tasks that failed to draw pictures of their models.
    """
    from duoln.runs.page import Part, write_page

    if args.html is not None:
        check_regular(args.html)
    failed: list[TaskError] = []
    if args.out is None and args.html is None:
        return failed
    with ExitStack() as stack:
        top = stack.enter_context(temporary_folder()) if args.out is None else args.out
        drawn = []
        for task, series, _ in parts:
            folder = top if len(parts) == 1 else top / task.name
            make_folder(folder)
            of_layers = write_layers(task, [c for s in series for c in s.runs], folder)
            pictures = [path for path in of_layers if path.suffix == ".png"]
            try:
                pictures += _pictures(task, series, folder)
            except TaskError as error:
                failed.append(error)
            drawn.append(Part(task, series, pictures))
            if args.out is not None:
                written = [*write_curves(task, series, folder, args.by), *of_layers, *pictures]
                for path in dict.fromkeys(written):
                    console.say(f"wrote {path}")
        if args.html is not None:
            console.say(f"wrote {write_page(drawn, args.html, console.number)}")
    return failed


def distinguishing_columns(series: Sequence[Series], by: By = "run") -> dict[str, list[str]]:
    """Columns that tell rows apart: the run, unless each is called as its variant, and the settings that differ."""
    columns = {}
    if any(len(s.runs) > 1 for s in series):
        columns["seeds"] = [str(len(s.runs)) for s in series]
    elif by == "run" and any(s.name != s.variant for s in series):
        columns["run"] = [s.name.removesuffix(f"/{s.variant}") for s in series]
    for key in dict.fromkeys(key for s in series for key in s.differences if key not in ("batch_size", "epochs")):
        columns[f"setting {key}" if key in columns else key] = [s.differences.get(key, "") for s in series]
    if any(s.ended() for s in series):
        columns["ended"] = [s.ended() for s in series]
    return columns


def result_row(task: Task, series: Series) -> dict[str, Any]:
    """The results of a series' runs, for the table."""
    return {**{column.key: series.figure(column.key) for column in task.columns}, "variant": series.variant,
            "batch_size": series.runs[0].config["batch_size"], "epochs": series.length("epoch"),
            "updates": series.length("update"), "changes": series.changes(),
            "seconds_per_update": statistics.median(c.seconds_per_update for c in series.runs),
            "seconds_per_epoch": statistics.median(c.seconds_per_epoch for c in series.runs)}


def _pictures(task: Task, series: Sequence[Series], out: Path) -> list[Path]:
    """The pictures that a task draws from its runs' models; most tasks draw none, and then no model is read."""
    from duoln.runs import kept
    from duoln.runs.trained import load_trained

    if type(task).pictures is Task.pictures or not drawing.can_draw():
        return []
    without = [c.path for s in series for c in s.runs if kept.is_kept(c.path)]
    if without:
        console.say(f"no pictures of models, because {without[0]} is kept without its checkpoints")
        return []
    backend = runtime.backend("numpy")
    models = {}
    for s in series:
        for c in s.runs:
            label = s.label() if len(s.runs) == 1 else f"{s.label()}, seed {c.config.get('seed')}"
            models[label] = load_trained(task, c.path, backend)
    return task.pictures(models, out)


# Files ---------------------------------------------------------------------------------------

def runs_of_one_task(command: str, paths: Sequence[Path], plugins: Sequence[str] | None) -> tuple[Task, list[Curve]]:
    """The runs in some folders, and their task.

    Raises:
        UsageError: they are of several tasks. The rest as `read_curves` and `find_task`.
    """
    curves = read_curves(paths)
    names = sorted({c.task for c in curves})
    if len(names) > 1:
        raise UsageError(f"[{command}] expected runs of one task, found {', '.join(names)}")
    return registry.find_task(names[0], plugins), curves


def runs_by_task(paths: Sequence[Path], plugins: Sequence[str] | None) -> list[tuple[Task, list[Curve]]]:
    """The runs in some folders, by task. A task that cannot be used is made of what its runs say, with a remark.

    Raises:
        As `read_curves`.
    """
    curves = read_curves(paths)
    by_task = []
    for name in sorted({c.task for c in curves}):
        of_task = [c for c in curves if c.task == name]
        try:
            task = registry.find_task(name, plugins)
        except (UsageError, PluginError) as error:
            why = error if isinstance(error, PluginError) else f"task {name!r} is not installed"
            console.say(f"{why}; the figures are those of its runs, without its titles, references and pictures",
                        style="yellow")
            task = absent_task(name, of_task)
        by_task.append((task, of_task))
    return by_task


def absent_task(name: str, curves: Sequence[Curve]) -> Task:
    """A task whose plug-in is not there, as its runs describe it: its variants, and a column for each metric."""
    keys = dict.fromkeys(key for c in curves for point in c.points for key in point if key not in NO_METRICS)
    task = Task()
    task.__dict__.update(name=name, title=name, variants={c.variant: {} for c in curves},
                         columns=tuple(Column(key, key.replace("_", " "), ".4g") for key in keys))
    return task


def write_curves(task: Task, series: Sequence[Series], out: Path, by: By = "run") -> list[Path]:
    """Write `CURVES`, the picture only where matplotlib is installed."""
    from duoln.runs import curves_picture

    written = [write_csv(series, out / CURVES[0], by)]
    if drawing.can_draw():
        written.append(curves_picture.draw(task, series, out / CURVES[1]))
    return written


def write_layers(task: Task, curves: Sequence[Curve], out: Path) -> list[Path]:
    """Write `LAYERS` for the runs that have statistics of their layers, the picture only where matplotlib is installed.

    Runs that do not fit beside each other are in further pictures, such as `norm_stats-2.png`.
    """
    order = {variant: k for k, variant in enumerate(task.variants)}
    ordered = sorted(curves, key=lambda c: order.get(c.variant, len(order)))
    named = {name: c for name, c in zip(short_names([c.path for c in ordered]), ordered, strict=True) if c.layers}
    if not named:
        return []
    written = [norm_stats.write_table({name: (c.variant, c.layers) for name, c in named.items()}, out / LAYERS[0])]
    names = list(named) if drawing.can_draw() else []
    for first in range(0, len(names), _BESIDE):
        picture = out / (LAYERS[1] if not first else f"norm_stats-{first // _BESIDE + 1}.png")
        group = {name: named[name].layers for name in names[first:first + _BESIDE]}
        written.append(norm_stats.draw(f"{task.title}: statistics of the layers", group, picture))
    return written


# Markdown ---------------------------------------------------------------------------------------------

COLUMNS = 8
"""The most updates of a table over time."""


def results_in_markdown(task: Task, rows: Sequence[Mapping[str, Any]], told_apart: Mapping[str, Sequence[str]]) -> str:
    """A line for each row: the variant, what tells it apart, its length, and its metrics.

    Several seeds are their median, and in brackets the least and the greatest value and the number of those with NaN.
    """
    length, unit = ("updates", "updates") if task.x_axis == "update" else ("epochs", "epochs")
    metrics, _ = split_columns(task.columns)
    header = ["variant", *told_apart, "batch", unit, *(c.heading for c in metrics)]
    lines = [header, ["---"] * len(header)]
    for k, row in enumerate(rows):
        lines.append([f"`{row['variant']}`", *(cells[k] for cells in told_apart.values()), str(row["batch_size"]),
                      _in_one_line(console.count(row[length])), *(_cell(row.get(c.key), c.form) for c in metrics)])
    changes = console.changes_in(rows)
    return "\n".join([_table(lines), *(["", *changes] if changes else [])])


def over_time(task: Task, series: Sequence[Series], key: str) -> str:
    """A line for each series: one metric at up to COLUMNS of its evaluations, evenly chosen, the last one too.

    Raises:
        UsageError: no evaluation has such a metric.
    """
    points = {s.label(): s.points(metric(key, "update")) for s in series}
    counts = sorted({int(p.x) for of_series in points.values() for p in of_series})
    if not counts:
        known = sorted({k for s in series for c in s.runs for p in c.points for k in p} - {"event", "update"})
        raise UsageError(f"[report] --over: expected a metric of {', '.join(known)}; "
                         f"found {key!r}{did_you_mean(key, known)}")
    chosen = counts if len(counts) <= COLUMNS else [
        counts[len(counts) * (k + 1) // COLUMNS - 1] for k in range(COLUMNS)]
    column = next((c for c in task.columns if c.key == key), Column(key, key, ".4g"))
    lines = [[f"{column.heading}, after updates", *map(str, chosen)], ["---"] * (1 + len(chosen))]
    for label, of_series in points.items():
        at = {int(p.x): p for p in of_series}
        code = label.replace("`", "'")
        lines.append([f"`{code}`", *(_cell(_value(at.get(update)), column.form) for update in chosen)])
    return _table(lines)


def _value(point: Point | None) -> Any:
    if point is None or (point.low == point.high and not point.nan):
        return point and point.y
    return Range(*point[1:])


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(cell: str) -> str:
    """A cell in one line, whose bars end no cell; a code span keeps its backslash before a bar to itself."""
    return " ".join(visible(cell).split()).replace("|", "\\|")


def _cell(value: Any, form: str) -> str:
    return _in_one_line(console.number(value, form))


def _in_one_line(text: str) -> str:
    median, *spread = text.split("\n")
    return f"{median} ({', '.join(spread)})" if spread else median
