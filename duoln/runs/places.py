"""Finds runs: all run folders at and below a path, at any depth, and no run in another one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from duoln.data import json_text
from duoln.errors import DataError, UsageError
from duoln.runs.log import NAME as LOG

CONFIG, RESULT, COMMAND, LOCK, CHECKPOINTS = "config.json", "result.json", "command.json", "lock", "checkpoints"
CURVES = "curves.csv"
"""The curves of a kept run."""


MAX_JSON = 1 << 20
"""The most bytes of `config.json` or `result.json`; they have some 1,000."""


def natural_sort_key(path: str | Path) -> tuple[list[str | int], str]:
    """A key by which names are in the order of the numbers in them: `ln-seed9` comes before `ln-seed10`."""
    parts = re.split("([0-9]+)", str(path))
    return [int(part) if k % 2 else part for k, part in enumerate(parts)], str(path)


def is_run(folder: Path) -> bool:
    """True for the folder of a run or of a kept run. Programs of others have a `config.json` too, so that another
    file of a run must be beside it, and that it must name a task, unless it is damaged.
    """
    beside = ((LOG,), (COMMAND,), (LOCK,), (CURVES, RESULT))
    return (folder / CONFIG).is_file() and (
        any(all((folder / name).exists() for name in names) for names in beside)
        or any((folder / CHECKPOINTS).glob("update-*.safetensors"))) and not _is_of_others(folder / CONFIG)


def _is_of_others(config: Path) -> bool:
    try:
        content = json_text.read_json(config, MAX_JSON)
    except DataError:
        return False
    return isinstance(content, dict) and "task" not in content


def run_folders(path: Path) -> list[Path]:
    """The run folders at a path and at any depth below it, in order. A folder with `config.json` and without runs that
    the caller names is taken for a run, so that its reader can say what it lacks.
    """
    runs = [folder for folder in folders_below(path) if is_run(folder)]
    return runs or ([path] if (path / CONFIG).is_file() else [])


def folders_below(path: Path) -> Iterator[Path]:
    """A folder and those below it, in order, each once; links are followed. Of a run its checkpoints are left out, and
    so is each folder whose name begins with a dot.
    """
    seen: set[str] = set()
    if not path.is_dir():  # `os.walk` raises for a name with a zero byte
        return
    for place, inside, _ in os.walk(path, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            inside.clear()
            continue
        seen.add(real)
        ours = (name for name in inside if name != CHECKPOINTS and not name.startswith("."))
        inside[:] = sorted(ours, key=natural_sort_key)
        yield Path(place)


def check_apart(folder: Path) -> None:
    """Refuse to make a run in another run, or around others: a report could show only some of them.

    Raises:
        UsageError: the message names the other run.
    """
    if (folder / CONFIG).is_file():
        return
    whole = folder.absolute()
    around = next((place for place in whole.parents if is_run(place)), None)
    if around is not None:
        raise UsageError(f"{folder}: expected a folder outside of other runs, found the run {around} around it; "
                         "choose another --out")
    inside = next(filter(is_run, folders_below(folder)), None)
    if inside is not None:
        raise UsageError(f"{folder}: expected a folder without other runs, found the run {inside} in it; "
                         "choose another --out")
