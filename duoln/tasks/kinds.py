"""The types that a setting may have, and their values as JSON and as a command line have them.

A type is int, float, bool, str, None, a Literal of them, a tuple or list of types, or a union of types.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable
from numbers import Number
from typing import Any, Literal

import numpy as np

from duoln.core.arguments import did_you_mean
from duoln.data.json_text import parse_json
from duoln.errors import UsageError

_PLAIN = (bool, int, float, str, type(None))
_UNIONS = (types.UnionType, typing.Union)


class _MisfitError(Exception):
    """A value is none of the type."""


def is_readable(kind: Any) -> bool:
    """Whether a setting may have this type."""
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


def restore(what: str, value: Any, kind: Any) -> Any:
    """A setting as its type, from what JSON made of it.

    Raises:
        UsageError: it does not fit; the message begins with `what`.
    """
    return _converted(what, value, kind, _from_value)


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
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    args = typing.get_args(kind)
    if typing.get_origin(kind) in _UNIONS:  # the type that the value has already stands first
        return _first(value, sorted(args, key=lambda k: type(value) is not k), _from_value)
    if typing.get_origin(kind) is Literal:
        for option in args:
            if value == option and isinstance(value, bool) == isinstance(option, bool):
                return option
        raise _MisfitError
    if typing.get_origin(kind) in (tuple, list):
        if not isinstance(value, tuple | list):
            raise _MisfitError
        return _parts(value, kind, _from_value)
    if kind in (int, float) and not isinstance(value, bool) and isinstance(value, Number):
        return _number(value, kind)
    if (kind is type(None) and value is None) or (kind in (bool, str) and isinstance(value, kind)):
        return value
    raise _MisfitError


def _from_text(text: str, kind: Any) -> Any:
    args = typing.get_args(kind)
    if typing.get_origin(kind) in _UNIONS:  # every text is a str, so that others are tried before
        return _first(text, sorted(args, key=lambda k: (k is str, k is not type(None))), _from_text)
    if typing.get_origin(kind) is Literal:
        for option in args:
            if text in (value_in_words(option), str(option)):
                return option
        raise _MisfitError
    if typing.get_origin(kind) in (tuple, list):
        if not text.startswith("["):
            return _parts(text.split(",") if text else (), kind, _from_text)
        try:
            return _from_value(parse_json(text.encode()), kind)
        except ValueError:
            raise _MisfitError from None
    if kind in (int, float):
        return _number(text, kind)
    if kind is str:
        try:
            text.encode()
        except UnicodeEncodeError:  # bytes of a command line that are no UTF-8
            raise _MisfitError from None
        return str(text)
    words = {"none": None} if kind is type(None) else {"true": True, "false": False} if kind is bool else {}
    if text not in words:
        raise _MisfitError
    return words[text]


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
