"""`duoln new-task NAME`: it writes a package with a task that runs at once and that its user then changes."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import tempfile
from pathlib import Path
from typing import Any

from duoln.cli.template import fill
from duoln.errors import DuolnError, UsageError

_NAME = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?")


def add_command(commands: Any) -> None:
    """Add `new-task` to the command line."""
    new = commands.add_parser("new-task", help="write a package with a task that runs, to start your own from")
    new.add_argument("name", metavar="NAME", help="of the task, its package and its folder, such as my_task")
    new.set_defaults(run=_new_task)


def _new_task(args: argparse.Namespace) -> int:
    from duoln.cli import console

    folder = write_task(args.name, Path())
    console.say(f"wrote {folder}; next:")
    for line in (f"pip install -e ./{folder}", f"duoln run {args.name} --preset smoke", f"pytest ./{folder}"):
        console.put(line)
    return 0


def write_task(name: str, parent: Path) -> Path:
    """Write the package of a new task to the folder `name` in `parent`; returns the folder.

    Raises:
        UsageError: the name cannot name a task and a package, or is not free, or the folder exists.
        DuolnError: the folder cannot be written; no part of it remains.
    """
    target = parent / name
    _check_name(name)
    if target.exists() or target.is_symlink():
        raise UsageError(f"[new-task] expected no folder {target} yet, found one; choose another name")
    _check_free(name)
    try:
        # The package is written elsewhere and moved as a whole, so that a full disk or a kill leaves no part of it.
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as aside:
            for path, text in fill(name).items():
                file = Path(aside) / name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            (Path(aside) / name).rename(target)
    except OSError as error:
        raise DuolnError(f"{target}: cannot be written: {error.strerror or error}") from error
    return target


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        meant = f"; did you mean {near}?" if _NAME.fullmatch(near) and not keyword.iskeyword(near) else ""
        raise UsageError("[new-task] expected a name of lower-case letters, digits and underscores that starts with a "
                         "letter, does not end with an underscore and is not a keyword of Python; "
                         f"found {name!r}{meant}")


def _check_free(name: str) -> None:
    from duoln.tasks.registry import Registry, plugins

    registry = Registry()
    taken = {task: entry.distribution for task, entry in registry.tasks.items()}
    for plugin, distribution in [*((plugin.name, owner) for plugin, owner in plugins()), *taken.items()]:
        if name == plugin:
            raise UsageError(f"[new-task] expected a name that is free, found {name!r}, which is {distribution}'s")
    if name == "tests" or importlib.util.find_spec(name) is not None:
        raise UsageError(f"[new-task] expected a name that no installed module has, found {name!r}")
