"""The settings of runs on disk: those that a folder holds, and those with which a run goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.errors import CheckpointError, DataFormatError, UsageError
from duoln.runs.folder import CONFIG, read_json, write_json
from duoln.system.filesystem import check_regular, make_folder
from duoln.tasks.kinds import value_in_words
from duoln.tasks.settings import check_config, make_config, restored
from duoln.tasks.task import Config, Task

MAY_CHANGE = ("epochs", "evaluate_every", "patience")
"""Settings that may differ in a resumed run: how long it trains and when it is evaluated."""
COMMAND = "command.json"


class Command(NamedTuple):
    """What one `duoln run` was asked to train; its variants share a folder."""

    variants: list[str]
    preset: str | None
    settings: dict[str, Any]


class Resumed(NamedTuple):
    """The settings with which a run goes on."""

    config: Config
    changed: dict[str, tuple[Any, Any]]
    """The settings of `MAY_CHANGE` that differ: before and now."""


def read_config(task: Task, folder: Path) -> tuple[str, Config]:
    """The variant of a run and its settings, from the run's folder.

    Raises:
        CheckpointError: there is no `config.json`, or another version of the task wrote it.
        DataFormatError: it is damaged. UsageError: the run is of another task, or a setting is of another kind.
    """
    path = folder / CONFIG
    content = read_json(path)
    if content.get("task") != task.name:
        raise UsageError(f"{folder}: expected a run of {task.name}, found one of {content.get('task')!r}")
    variant = content.get("variant")
    if not isinstance(variant, str):
        raise DataFormatError(path, 0, "a text as variant", f"{variant!r:.60}")
    return variant, config_of(task, content.get("config"), path)


def config_of(task: Task, settings: Any, source: object) -> Config:
    """The settings that a JSON object holds, all of them; `source` begins the errors.

    Raises:
        CheckpointError: another version of the task wrote them.
        DataFormatError: it is no object. UsageError: a setting is of another kind.
    """
    if not isinstance(settings, dict):
        raise DataFormatError(source, 0, "an object as config", f"{settings!r:.60}")
    names = {f.name for f in dataclasses.fields(task.config)}
    strangers = sorted(names ^ settings.keys())
    if strangers:
        raise CheckpointError(f"{source}: setting '{strangers[0]}' is "
                              f"{'missing' if strangers[0] in names else 'unknown'}: another version wrote it")
    return restored(f"{source}: ", task, settings)


def resumed_config(task: Task, variant: str, folder: Path, preset: str | None, settings: Mapping[str, Any]) -> Resumed:
    """The settings of a run that goes on: those of its folder. A run that has no folder yet begins as asked.

    A preset asks for all settings, `settings` for those that it names. What is asked for must be what the folder has;
    only settings of `MAY_CHANGE` may change.

    Raises:
        UsageError: a setting contradicts the folder; the message has both values. The rest as `make_config`.
        CheckpointError, DataFormatError: as `read_config`, or `config.json` is no regular file.
    """
    asked = make_config(task, variant, preset, settings)
    check_regular(folder / CONFIG)
    if not (folder / CONFIG).is_file():
        check_config(task, variant, asked)
        return Resumed(asked, {})
    of_folder, before = read_config(task, folder)
    if of_folder != variant:
        raise UsageError(f"{folder}: expected a run of the variant {variant!r}, found one of {of_folder!r}")
    named = [f.name for f in dataclasses.fields(task.config)] if preset else list(settings)
    differ = {key: (getattr(before, key), getattr(asked, key)) for key in named
              if getattr(before, key) != getattr(asked, key)}
    refused = [f"{key} {value_in_words(now)} where it has {value_in_words(then)}"
               for key, (then, now) in differ.items() if key not in MAY_CHANGE]
    if refused:
        source = f"; preset {preset!r} asks for every setting" if preset else ""
        raise UsageError(f"[{task.name} {variant}] expected the settings of {folder / CONFIG}, with which the run goes "
                         f"on; found {', '.join(refused)}{source}. Leave out what differs, or begin a run with another "
                         f"--out; only {', '.join(MAY_CHANGE)} may change")
    config = dataclasses.replace(before, **{key: now for key, (_, now) in differ.items()})
    check_config(task, variant, config)
    return Resumed(config, differ)


def write_command(folder: Path, command: Command) -> None:
    """Write what a command was asked to train, so that it can go on in a variant that it had not begun.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    make_folder(folder)
    write_json(folder / COMMAND, command._asdict())


def read_command(folder: Path) -> Command | None:
    """What the command of this folder was asked to train; None if none has noted it.

    Raises:
        DataFormatError: the file is damaged. CheckpointError: it is no regular file.
    """
    path = folder / COMMAND
    check_regular(path)
    if not path.is_file():
        return None
    content = read_json(path)
    variants, preset, settings = (content.get(key) for key in Command._fields)
    if not (isinstance(variants, Sequence) and all(isinstance(name, str) for name in variants)):
        raise DataFormatError(path, 0, "a list of names as variants", f"{variants!r:.60}")
    if not (preset is None or isinstance(preset, str)):
        raise DataFormatError(path, 0, "a text as preset", f"{preset!r:.60}")
    if not isinstance(settings, dict):
        raise DataFormatError(path, 0, "an object as settings", f"{settings!r:.60}")
    return Command(list(variants), preset, settings)
