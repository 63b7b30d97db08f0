"""`duoln report`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duoln.cli import facts
from duoln.cli.curves import write_curves
from duoln.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from duoln.runs.report import Curve
    from duoln.tasks.task import Task


def add_command(commands: Any) -> None:
    """Add `report` to the command line."""
    report = commands.add_parser("report", help="figures and curves of finished or running runs")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    report.add_argument("--out", type=Path, help="where to write the curves (default: the first RUN)")
    facts.add_plugin_option(report)
    report.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    report.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> int:
    from duoln.cli import console
    from duoln.runs import report
    from duoln.tasks.registry import find_task

    curves = report.read_curves(args.runs)
    names = sorted({c.task for c in curves})
    if len(names) > 1:
        raise UsageError(f"[report] expected runs of one task, found {', '.join(names)}")
    task = find_task(names[0], args.plugins)
    for label in dict.fromkeys(c.dataset for c in curves):
        rows = [_report_row(c) for c in curves if c.dataset == label]
        console.show_results(task, label, rows)
    out = args.out or args.runs[0]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be made: {error.strerror or error}") from error
    for path in write_curves(task, args.runs, out):
        console.say(f"wrote {path}")
    for path in _pictures(task, curves, out):
        console.say(f"wrote {path}")
    if args.json:
        console.put_json({"task": task.name, "runs": [
            {"run": str(c.path), "variant": c.variant, "dataset": c.dataset._asdict(), "config": dict(c.config),
             "evaluations": c.points, "result": c.result} for c in curves]})
    return 0


def _pictures(task: Task, curves: Sequence[Curve], out: Path) -> list[Path]:
    """The pictures that a task draws from its runs' models; most tasks draw none, and then no model is read."""
    from duoln import runtime, tasks
    from duoln.pictures import drawing
    from duoln.runs.trained import load_trained

    if type(task).pictures is tasks.Task.pictures or not drawing.can_draw():
        return []
    shared = {c.name for c in curves if sum(twin.name == c.name for twin in curves) > 1}
    backend = runtime.backend("numpy")
    return task.pictures({f"{c.name}, {c.path}" if c.name in shared else c.name: load_trained(task, c.path, backend)
                          for c in curves}, out)


def _report_row(curve: Curve) -> dict[str, Any]:
    """The result of a run: its last evaluation, or an earlier one if patience chose that."""
    last = curve.points[-1] if curve.points else {"step": 0, "epoch": 0.0, "wall_s": 0.0}
    last = next((p for p in curve.points if p["step"] == curve.result.get("steps")), last)
    epochs = last["epoch"]
    return {**last, "variant": curve.variant, "batch_size": curve.config["batch_size"], "epochs": epochs,
            "steps": last["step"], "seconds_per_epoch": last["wall_s"] / epochs if epochs else 0.0}
