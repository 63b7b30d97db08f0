"""The settings of runs on disk: those that a folder holds, and those with which a run goes on."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.errors import CheckpointError, CheckpointWarning, DataFormatError, UsageError
from duoln.runs.folder import folder_name, read_json, write_json
from duoln.runs.places import COMMAND, CONFIG, folders_below, natural_sort_key
from duoln.system.filesystem import check_regular, make_folder
from duoln.tasks.settings import check_config, make_config, restored, value_in_words
from duoln.tasks.task import Config, Task

MAY_CHANGE = ("epochs", "evaluate_every", "patience")
"""Settings that may differ in a resumed run: how long it trains and when it is evaluated."""


class Job(NamedTuple):
    """One run of a command: a variant, and its seed if the command has several."""

    variant: str
    seed: int | None = None

    @property
    def name(self) -> str:
        """The name of the run and of its folder: `ln`, or `ln-seed1`."""
        return folder_name(self.variant, {} if self.seed is None else {"seed": str(self.seed)})


class Command(NamedTuple):
    """The request of one `duoln run`; the folders of its runs are in one folder, and a file in each holds this."""

    variants: list[str]
    """All variants of the command: it may have been killed before it noted the others."""
    preset: str | None
    settings: dict[str, Any]
    seeds: list[int]
    """Each variant is trained with each of these; one alone is a setting as the others are, and none is the task's."""
    precision: str | None = None
    task: str = ""
    time: str = ""
    """When the command began, in UTC."""

    def settings_of(self, job: Job) -> dict[str, Any]:
        """The settings of one of its runs."""
        seeds = self.seeds if job.seed is None else [job.seed]
        return {**({"seed": seeds[0]} if seeds else {}), **self.settings}


def jobs(variants: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """The runs of a command, in their order: all variants of a seed, then those of the next one."""
    return [Job(name, seed) for seed in (seeds if len(seeds) > 1 else [None]) for name in variants]


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
    """The settings that a JSON object holds; `source` begins the errors.

    A setting that the task has got since then has its default, and a `CheckpointWarning` says so.

    Raises:
        CheckpointError: a setting is unknown, or is missing and has no default.
        DataFormatError: it is no object. UsageError: a setting is of another kind.
    """
    if not isinstance(settings, dict):
        raise DataFormatError(source, 0, "an object as config", f"{settings!r:.60}")
    known = {f.name: f for f in dataclasses.fields(task.config)}
    for key in sorted(settings.keys() - known):
        raise CheckpointError(f"{source}: setting {key!r} is unknown: another version of {task.name} wrote it")
    absent = [key for key in known if key not in settings]
    for key in absent:
        if known[key].default is known[key].default_factory is dataclasses.MISSING:
            raise CheckpointError(f"{source}: setting {key!r} is missing: another version of {task.name} wrote it; "
                                  f"give it a default in {task.config.__name__}, or write its value into this file")
    config = restored(f"{source}: ", task, settings)
    if absent:
        told = ", ".join(f"{key} is {getattr(config, key)!r:.40}" for key in absent)
        warnings.warn(f"{source}: written before {task.name} had all its settings: {told}, by default",
                      CheckpointWarning, stacklevel=2)
    return config


def resumed_config(task: Task, variant: str, folder: Path, preset: str | None, settings: Mapping[str, Any],
                   ) -> tuple[Config, dict[str, tuple[Any, Any]]]:
    """The settings of a run that goes on: those of its folder. A run that has no folder yet begins as asked.

    The second result has the settings of `MAY_CHANGE` that differ: before and now. A preset asks for all settings,
    `settings` for those that it names. What is asked for must be what the folder has; only those may change.

    Raises:
        UsageError: a setting contradicts the folder; the message has both values. The rest as `make_config`.
        CheckpointError, DataFormatError: as `read_config`, or `config.json` is no regular file.
    """
    asked = make_config(task, variant, preset, settings)
    check_regular(folder / CONFIG)
    if not (folder / CONFIG).is_file():
        return asked, {}
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
    return config, differ


def write_command(folder: Path, command: Command) -> None:
    """Write the command that is to make the run of this folder. Raises CheckpointError if it cannot be written."""
    make_folder(folder)
    write_json(folder / COMMAND, command._asdict())


def read_command(folder: Path) -> Command | None:
    """The command that is to make the run of this folder; None if no command has noted it.

    Raises:
        DataFormatError: the file is damaged. CheckpointError: it is no regular file.
    """
    path = folder / COMMAND
    check_regular(path)
    if not path.is_file():
        return None
    content = read_json(path)
    kinds: dict[str, tuple[str, tuple[type, ...]]] = {
        "variants": ("a list of names", (list,)), "preset": ("a text or null", (str, type(None))),
        "settings": ("an object", (dict,)), "seeds": ("a list of numbers", (list,)),
        "precision": ("a text or null", (str, type(None))), "task": ("a text", (str,)), "time": ("a text", (str,))}
    for key, (words, kind) in kinds.items():
        if type(content.get(key)) not in kind or key not in content:
            raise DataFormatError(path, 0, f"{words} as {key}", f"{content.get(key)!r:.60}")
    return Command(*(content[key] for key in kinds))


def newest_below(folder: Path, task: str) -> Path | None:
    """The folder below a folder in which a command of a task began last, by what it says and not by its name.

    Raises:
        DataFormatError: a file is damaged. CheckpointError: one is no regular file.
    """
    begun = [(command.time, natural_sort_key(run.parent), run.parent) for run in folders_below(folder)
             if run != folder and (command := read_command(run)) is not None and command.task == task]
    return max(begun)[-1] if begun else None
