"""The settings of a task: their types and meanings, and the configurations that are made of them.

The type of a setting is int, float, bool, str, None, a Literal of them, a tuple or list of types, or a union of types.
Its meaning is the string under its field, which is also what documentation tools read:

    @dataclass(frozen=True)
    class MyConfig(Config):
        width: int = 32
        '''Units of each hidden layer.'''

Python drops such strings, so they are read from the source, which wheels and checkouts contain.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, Literal, NamedTuple

import numpy as np

from duoln.core.arguments import did_you_mean
from duoln.core.pytorch_names import how_to_name
from duoln.data import json_text
from duoln.errors import DuolnError, TaskError, UsageError, words_of
from duoln.randomness import LARGEST_SEED
from duoln.tasks.task import Config, Task

_PLAIN = (bool, int, float, str, type(None))
_UNIONS = (types.UnionType, typing.Union)


# Configurations --------------------------------------------------------------------------------------------

def option(default: Any, help: str) -> Any:
    """A field of `Task.sampling` or `Task.evaluating`: its default value and its text in `--help`."""
    return dataclasses.field(default=default, metadata={"help": help})


def make_config(task: Task, variant: str, preset: str | None = None,
                settings: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a run: defaults, then the preset, the variant, and last the user's settings.

    Settings may be text, as from `--set learning_rate=0.01`; they are read by the field's type.

    Raises:
        UsageError: an unknown variant, preset or setting, or a value that does not fit, or that no run can have; it
            lists what there is.
        TaskError: the task's class of settings takes none, or has some that JSON cannot hold.
    """
    for kind, name, known in (("preset", preset, task.presets), ("variant", variant, task.variants)):
        if (name is not None or kind == "variant") and (not isinstance(name, str) or name not in known):
            raise UsageError(f"[{task.name}] expected a {kind} of {', '.join(known) or 'none'}; found {name!r:.40}"
                             f"{did_you_mean(name, known)}")
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
    cfg = _configured(task, values)
    check_config(task, variant, cfg)
    return cfg


def check_config(task: Task, variant: str, cfg: Config) -> None:
    """Raises UsageError for a seed or a number of epochs, examples or evaluations that no run can have."""
    check_least(f"{task.name} {variant}", cfg, seed=0, epochs=0, batch_size=1, evaluate_every=0, patience=0)
    if cfg.seed > LARGEST_SEED:
        raise UsageError(f"[{task.name} {variant}] expected a seed of at most 2^64 - 1, found {cfg.seed}")


def check_least(name: str, cfg: Config, **least: int) -> None:
    """Raises UsageError for a setting that is below its least value; one that is None is not."""
    for key, lowest in least.items():
        value = getattr(cfg, key)
        if value is not None and value < lowest:
            raise UsageError(f"[{name}] expected {key} of at least {lowest}, found {value}")


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
    content: dict[str, Any] = json_text.revive(json_text.parse_json(json_text.dumps(dataclasses.asdict(cfg)).encode()))
    return content


def restored(source: str, task: Task, settings: Mapping[str, Any]) -> Config:
    """The configuration that JSON holds, all settings of it; `source` begins the errors.

    Raises:
        UsageError: a setting is of another type.
    """
    kinds = typing.get_type_hints(task.config)
    return task.config(**{key: _converted(f"{source}{key}", value, kinds[key], _from_value)
                          for key, value in settings.items()})


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


# Meanings --------------------------------------------------------------------------------------------------

class Setting(NamedTuple):
    """A setting of a task, as one reads it."""

    name: str
    kind: str
    """The type in words: `int`, `float or none`, `one of layer, none`."""
    default: Any
    meaning: str
    """Empty if the class says nothing, or if its source is not there."""


def settings_of(task: Task) -> list[Setting]:
    """The settings of a task, in the order of its class."""
    kinds, meanings = typing.get_type_hints(task.config), meanings_of(task.config)
    defaults = task.config()
    return [Setting(f.name, kind_in_words(kinds[f.name]), getattr(defaults, f.name), meanings.get(f.name, ""))
            for f in dataclasses.fields(task.config)]


def meanings_of(config: type[Config]) -> dict[str, str]:
    """The strings under the fields of a class and of its bases, by field; a field that is defined again keeps its
    base's string unless it has its own.
    """
    meanings: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        if dataclasses.is_dataclass(kind):
            meanings |= _own_meanings(kind)
    return meanings


def has_source(config: type[Config]) -> bool:
    """True if the source of a class is there; one that was typed into an interpreter has none."""
    try:
        inspect.getsource(config)
    except (OSError, TypeError):
        return False
    return True


def _own_meanings(kind: type) -> dict[str, str]:
    if not has_source(kind):
        return {}
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    if not isinstance(definition, ast.ClassDef):
        return {}
    meanings = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)):
            meanings[field.target.id] = " ".join(below.value.value.split())
    return meanings


# Types and values ------------------------------------------------------------------------------------------

class _MisfitError(Exception):
    """A value is none of the type."""


def is_readable(kind: Any) -> bool:
    """True if a setting may have this type."""
    args = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return all(type(option) in _PLAIN for option in args)
    if typing.get_origin(kind) in (tuple, list):
        return bool(args) and all(is_readable(k) for k in args if k is not ...)
    return kind in _PLAIN or (typing.get_origin(kind) in _UNIONS and all(map(is_readable, args)))


def convert(what: str, value: Any, kind: Any) -> Any:
    """A setting as its type; text is read as `--set` has it, `a,b,c` or a list of JSON for several values.

    Raises:
        UsageError: it does not fit; the message begins with `what`.
    """
    return _converted(what, value, kind, _from_text if isinstance(value, str) else _from_value)


def kind_in_words(kind: Any) -> str:
    """A type as one reads it, with the values that `--set` takes where they are few."""
    if typing.get_origin(kind) in _UNIONS:
        return " or ".join(map(kind_in_words, typing.get_args(kind)))
    if typing.get_origin(kind) is Literal:
        return f"one of {', '.join(map(value_in_words, typing.get_args(kind)))}"
    if kind is type(None):
        return "none"
    return "true or false" if kind is bool else kind.__name__ if isinstance(kind, type) else str(kind)


def value_in_words(value: Any) -> str:
    """A setting as `--set` takes it."""
    if isinstance(value, tuple | list):
        parts = [part if isinstance(part, str) else value_in_words(part) for part in value]
        is_plain = all(part and "," not in part and part == part.strip() and part[0] != "[" for part in parts)
        return ",".join(parts) if is_plain else json.dumps(value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _converted(what: str, value: Any, kind: Any, read: Callable[[Any, Any], Any]) -> Any:
    try:
        return read(value, kind)
    except _MisfitError:
        options = [value_in_words(option) for k in (kind, *typing.get_args(kind)) if typing.get_origin(k) is Literal
                   for option in typing.get_args(k)]
        raise UsageError(f"{what}: expected {kind_in_words(kind)}{';' if options else ','} found {value!r}"
                         f"{did_you_mean(value, options)}") from None


def _from_value(value: Any, kind: Any) -> Any:
    """Raises _MisfitError for a value of Python that is not of the type."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    args = typing.get_args(kind)
    if typing.get_origin(kind) in _UNIONS:  # the type that the value has already stands first
        return _first(value, sorted(args, key=lambda k: type(value) is not k), _from_value)
    if typing.get_origin(kind) is Literal:
        return _same(args, lambda option: value == option and isinstance(value, bool) == isinstance(option, bool))
    if typing.get_origin(kind) in (tuple, list) and isinstance(value, tuple | list):
        return _parts(value, kind, _from_value)
    if kind in (int, float) and not isinstance(value, bool) and isinstance(value, Number):
        return _number(value, kind)
    if (kind is type(None) and value is None) or (kind in (bool, str) and isinstance(value, kind)):
        return value
    raise _MisfitError


def _from_text(text: str, kind: Any) -> Any:
    """Raises _MisfitError for a text that does not stand for a value of the type."""
    args = typing.get_args(kind)
    if typing.get_origin(kind) in _UNIONS:  # every text is a str, so that others are tried before
        return _first(text, sorted(args, key=lambda k: (k is str, k is not type(None))), _from_text)
    if typing.get_origin(kind) is Literal:
        return _same(args, lambda option: text in (value_in_words(option), str(option)))
    if kind in (int, float):
        return _number(text, kind)
    try:
        if typing.get_origin(kind) in (tuple, list):
            if text.startswith("["):
                return _from_value(json_text.parse_json(text.encode()), kind)
            return _parts(text.split(",") if text else (), kind, _from_text)
        if kind is str:
            text.encode()  # bytes of a command line that are no UTF-8
            return str(text)
    except ValueError:
        raise _MisfitError from None
    words = {"none": None} if kind is type(None) else {"true": True, "false": False} if kind is bool else {}
    return words[_same(words, text.__eq__)]


def _same(options: Iterable[Any], is_meant: Callable[[Any], bool]) -> Any:
    """The first of some options that is meant."""
    for option in options:
        if is_meant(option):
            return option
    raise _MisfitError


def _first(value: Any, kinds: Any, read: Callable[[Any, Any], Any]) -> Any:
    """The value as the first type that it fits."""
    for kind in kinds:
        try:
            return read(value, kind)
        except _MisfitError:
            continue
    raise _MisfitError


def _parts(values: Any, kind: Any, read: Callable[[Any, Any], Any]) -> Any:
    """The values as the types of a tuple's or list's parts."""
    kinds = typing.get_args(kind)
    if typing.get_origin(kind) is list or kinds[-1] is ...:
        kinds = (kinds[0],) * len(values)
    if len(kinds) != len(values):
        raise _MisfitError
    return typing.get_origin(kind)(map(read, values, kinds))


def _number(value: Any, kind: Any) -> Any:
    """A number, but NaN, or a fraction for a whole number."""
    try:
        converted = kind(value)
    except (TypeError, ValueError, OverflowError):
        raise _MisfitError from None
    if math.isnan(converted) if kind is float else not isinstance(value, str) and converted != value:
        raise _MisfitError
    return converted
