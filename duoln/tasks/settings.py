"""The settings of a task: it makes a configuration of them, and reads texts as settings."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from duoln.core.arguments import did_you_mean
from duoln.core.pytorch_names import how_to_name
from duoln.data import strictjson
from duoln.data.json_text import parse_json
from duoln.errors import DuolnError, TaskError, UsageError, words_of
from duoln.randomness import LARGEST_SEED
from duoln.tasks.kinds import convert, restore
from duoln.tasks.task import Config, Task


def option(default: Any, help: str) -> Any:
    """A field of `Task.sampling` or `Task.evaluating`: its default value and its text in `--help`."""
    return dataclasses.field(default=default, metadata={"help": help})


def make_config(task: Task, variant: str, preset: str | None = None,
                settings: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a run: defaults, then the preset, the variant, and last the user's settings.

    Settings may be text, as from `--set learning_rate=0.01`; they are read by the field's type.

    Raises:
        UsageError: an unknown variant, preset or setting, or a value that does not fit; it lists what there is.
        TaskError: the task's class of settings takes none, or has some that JSON cannot hold.
    """
    if variant not in task.variants:
        raise UsageError(f"[{task.name}] expected a variant of {', '.join(task.variants)}; found {variant!r}"
                         f"{did_you_mean(variant, task.variants)}")
    check_preset(task, preset)
    values = {**(task.presets[preset] if preset else {}), **task.variants[variant]}
    kinds = typing.get_type_hints(task.config)
    names = [f.name for f in dataclasses.fields(task.config)]
    strangers = sorted(values.keys() - set(names))
    if strangers:
        raise UsageError(f"[{task.name}] preset {preset!r} or variant {variant!r}: expected settings of "
                         f"{', '.join(names)}; found {strangers[0]!r}")
    for key, value in (settings or {}).items():
        if key not in names:
            raise UsageError(f"[{task.name}] expected a setting of {', '.join(names)}; found {key!r}"
                             f"{how_to_name(key, names)}")
        values[key] = convert(f"[{task.name}] {key}", value, kinds[key])
    return _configured(task, values)


def check_preset(task: Task, preset: str | None) -> None:
    """Raises UsageError for a preset that the task has not; it lists what there is."""
    if preset is not None and (not isinstance(preset, str) or preset not in task.presets):
        raise UsageError(f"[{task.name}] expected a preset of {', '.join(task.presets) or 'none'}; found "
                         f"{preset!r:.40}{did_you_mean(preset, task.presets)}")


def check_config(task: Task, variant: str, cfg: Config) -> None:
    """Raises UsageError for a seed or a number of epochs, examples or evaluations that no run can have."""
    for key, least in (("seed", 0), ("epochs", 0), ("batch_size", 1), ("evaluate_every", 0), ("patience", 0)):
        if getattr(cfg, key) < least:
            raise UsageError(f"[{task.name} {variant}] expected {key} of at least {least}, found {getattr(cfg, key)}")
    if cfg.seed > LARGEST_SEED:
        raise UsageError(f"[{task.name} {variant}] expected a seed of at most 2^64 - 1, found {cfg.seed}")


def _configured(task: Task, values: Mapping[str, Any]) -> Config:
    """The task's own class with some settings, as it comes back from a run's folder: a run that goes on has the same.

    Raises:
        TaskError: the class takes no such settings, JSON cannot hold them, or they come back as others.
    """
    try:
        cfg = task.config(**values)
        settings = through_json(cfg)
    except (DuolnError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise TaskError(f"{_config_of(task)}: {type(error).__name__}: {words_of(error)}") from error
    try:
        again = restored("", task, settings)
    except (UsageError, TypeError) as error:  # a field that its class does not take is a TypeError
        raise TaskError(f"{_config_of(task)}: no run could go on with it: {words_of(error)}") from error
    now = through_json(again)
    if now != settings:
        key = next(key for key in settings if now[key] != settings[key])
        raise TaskError(f"{_config_of(task)}: {key}: expected {settings[key]!r:.40} again of a configuration that is "
                        f"made of its own settings, found {now[key]!r:.40}")
    return again


def _config_of(task: Task) -> str:
    return f"task '{task.name}' of {task.owner or type(task).__module__}: config"


def through_json(cfg: Config) -> dict[str, Any]:
    """The settings as a run's folder gives them back: a tuple is a list."""
    content: dict[str, Any] = strictjson.revive(parse_json(strictjson.dumps(dataclasses.asdict(cfg)).encode()))
    return content


def restored(source: str, task: Task, settings: Mapping[str, Any]) -> Config:
    """The configuration that JSON holds, all settings of it; `source` begins the errors.

    Raises:
        UsageError: a setting is of another type.
    """
    kinds = typing.get_type_hints(task.config)
    return task.config(**{key: restore(f"{source}{key}", value, kinds[key]) for key, value in settings.items()})


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as a dict.

    Raises:
        UsageError: a text without `=`, or two values for one key.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"[--set] expected KEY=VALUE, found {pair!r}")
        if settings.get(key, value) != value:
            raise UsageError(f"[--set] expected one value of {key}, found {settings[key]!r} and {value!r}")
        settings[key] = value
    return settings
