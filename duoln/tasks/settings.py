"""The settings of a task: it makes a configuration of them, and reads texts as settings."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from duoln.core.arguments import did_you_mean
from duoln.core.miscalled import explained
from duoln.data import strictjson
from duoln.data.json_text import parse_json
from duoln.errors import DuolnError, TaskError, UsageError, words_of
from duoln.randomness import LARGEST_SEED
from duoln.tasks.task import Config, Task


@explained
def option(default: Any, help: str) -> Any:
    """A field of `Task.sampling` or `Task.evaluating`: its default value and its text in `--help`."""
    return dataclasses.field(default=default, metadata={"help": help})


@explained
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
                             f"{did_you_mean(key, names)}")
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
    """The task's own class with some settings; it is written to the run's folder, so JSON must be able to hold it."""
    try:
        cfg = task.config(**values)
        parse_json(strictjson.dumps(dataclasses.asdict(cfg)).encode())
    except (DuolnError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise TaskError(f"task '{task.name}' of {task.owner or type(task).__module__}: config: "
                        f"{type(error).__name__}: {words_of(error)}") from error
    return cfg


@explained
def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as a dict.

    Raises:
        UsageError: a text without `=`.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"[--set] expected KEY=VALUE, found {pair!r}")
        settings[key] = value
    return settings


def convert(what: str, value: Any, kind: Any) -> Any:
    """A setting as its field's type; text is parsed.

    Raises:
        UsageError: it does not fit; the message begins with `what`.
    """
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        if value is None or value == "none":
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if typing.get_origin(kind) is Literal:
        for option in typing.get_args(kind):
            if value == option or value == str(option):
                return option
        options = ", ".join(map(str, typing.get_args(kind)))
        raise UsageError(f"{what}: expected one of {options}; found {value!r}"
                         f"{did_you_mean(value, typing.get_args(kind))}")
    if kind is bool:
        if isinstance(value, bool) or value in ("true", "false"):
            return value in (True, "true")
        raise UsageError(f"{what}: expected true or false, found {value!r}")
    if kind not in (int, float, str):
        raise UsageError(f"{what}: settings of type {kind} cannot be set from outside")
    try:
        converted = kind(value)
        str(converted).encode()  # bytes of a command line that are no UTF-8 are a ValueError
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{what}: expected {kind.__name__}, found {value!r}") from None
    # A bool for a number, NaN, or a fraction for a whole number is an error of the user.
    is_nan = kind is float and math.isnan(converted)
    if isinstance(value, bool) or is_nan or (isinstance(value, float) and converted != value):
        raise UsageError(f"{what}: expected {kind.__name__}, found {value!r}")
    return converted
