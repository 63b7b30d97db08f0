"""`duoln data prepare TASK --from DIR`: it converts a corpus, as it is distributed, to the files that a task reads."""

from __future__ import annotations

import argparse
from typing import Any

from duoln.cli import facts
from duoln.errors import DataMissingError
from duoln.system.paths import path_argument


def add_command(commands: Any) -> None:
    """Add `data` to the command line."""
    data = commands.add_parser("data", help="prepare a corpus of your own for a task")
    kinds = data.add_subparsers(dest="kind", metavar="KIND", required=True)
    prepare = kinds.add_parser("prepare", help="read a corpus as it is distributed, write what the task reads")
    prepare.add_argument("task")
    prepare.add_argument("--from", type=path_argument, required=True, metavar="DIR", dest="source", help="the corpus")
    facts.add_plugin_option(prepare)
    prepare.add_argument("--out", type=path_argument, metavar="DIR",
                         help="a folder like DUOLN_DATA (default: the first one of DUOLN_DATA, else the cache)")
    prepare.set_defaults(run=_prepare)


def _prepare(args: argparse.Namespace) -> int:
    from duoln.cli import console
    from duoln.data import cache_folder, data_folders
    from duoln.tasks.registry import find_task

    task = find_task(args.task, args.plugins)
    if not args.source.exists():
        raise DataMissingError(f"{args.source}: expected the corpus of {task.name}, found nothing there")
    target = args.out or [*data_folders(), cache_folder()][0]
    for path in task.prepare(args.source, target):
        console.say(f"wrote {path}")
    return 0
