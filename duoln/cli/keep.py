"""`duoln keep`: what is worth keeping of runs that have ended, beside the task's code."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duoln.cli import console, facts
from duoln.cli.report import runs_of_one_task
from duoln.errors import UsageError
from duoln.system.paths import path_argument

if TYPE_CHECKING:
    from duoln.runs.curve import Curve
    from duoln.tasks.task import Task

_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, on every system."""


def add_command(commands: Any) -> None:
    """Add `keep` to the command line."""
    keep = commands.add_parser("keep", help="keep settings, figures and curves of ended runs beside the task's code")
    keep.add_argument("runs", nargs="+", type=path_argument, metavar="RUN", help="a run folder, or a folder of runs")
    keep.add_argument("--as", required=True, dest="name", metavar="NAME",
                      help="the name of these results; they replace what was kept under it")
    keep.add_argument("--to", type=path_argument, metavar="DIR",
                      help="where NAME is made (default: results beside the task's code; an installed package is "
                           "refused)")
    facts.add_plugin_option(keep)
    keep.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    keep.set_defaults(run=_keep)


def _keep(args: argparse.Namespace) -> int:
    from duoln.runs import kept

    if Path(args.name).name != args.name or args.name.startswith("."):
        raise UsageError(f"[keep] --as: expected the name of one folder, found {args.name!r}")
    task, curves = runs_of_one_task("keep", args.runs, args.plugins)
    for curve in curves:
        kept.check_ended(curve)
    target = (_home(task) if args.to is None else args.to) / args.name
    before = [path for path in target.glob("*") if kept.is_kept(path)]
    if stranger := next((name for path in before if (name := kept.read(path).task) != task.name), None):
        raise UsageError(f"[keep] {target}: expected results of {task.name}, found some of {stranger}; choose another "
                         "name with --as")
    folders = [target / name for name in _names(task, curves)]
    for curve, folder in zip(curves, folders, strict=True):
        size = sum(path.stat().st_size for path in kept.keep(curve, folder))
        console.say(f"kept {folder}, {-(-size // 1024)} KiB")
    for old in sorted(set(before).difference(folders)):
        kept.remove(old)
        console.say(f"removed {old}, which was kept before")
    if args.json:
        console.put_json({"task": task.name, "kept": [str(folder) for folder in folders]})
    return 0


def _home(task: Task) -> Path:
    """The folder of a task's kept runs, but of no installed one, which the next installation would remove."""
    from duoln.runs import kept

    home = kept.kept_folder(task)
    if _INSTALLED.intersection(home.parts) or not (home.parent.is_dir() and os.access(home.parent, os.W_OK)):
        raise UsageError(f"[keep] expected a checkout, to keep results beside the code of {task.name}, found "
                         f"{home.parent}, which is installed or cannot be written; name a folder with --to DIR")
    return home


def _names(task: Task, curves: Sequence[Curve]) -> list[str]:
    """For each run its variant, and the settings in which the runs differ."""
    from duoln.runs.folder import folder_name
    from duoln.runs.series import differing_settings

    keys = differing_settings(task, curves)
    names: dict[str, Curve] = {}
    for curve in curves:
        name = folder_name(curve.variant, {key: str(curve.config.get(key)) for key in keys})
        if name in names:
            raise UsageError(f"[keep] expected runs of different settings, found {names[name].path} and {curve.path}")
        names[name] = curve
    return list(names)
