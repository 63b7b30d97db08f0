"""Checks what the author of a task gives: its attributes once, before it is offered, and each result of its methods.

A result is checked at once, because a later error could not name the method.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from duoln import tree
from duoln.core import Tensor
from duoln.data import json_text
from duoln.errors import PluginError, words_of
from duoln.nn import Module
from duoln.optim import Groups, Optimizer
from duoln.tasks.settings import is_readable, kind_in_words
from duoln.tasks.task import Config, Task
from duoln.tasks.values import Column, Dataset, Findings, Provenance, ReferenceCurve, ReferenceTable, Splits

NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,63}")
"""Names are typed on command lines, and folders are called after them."""
_NAME_WORDS = "1 to 64 letters, digits, '_', and inside also '-' and single '.'"

RESERVED = {
    "config": (("task", "variant", "preset", "backend", "out", "data", "resume", "listeners", "precision", "watch",
                "watch_every"), "an argument of duoln.tasks.train"),
    "sampling": (("help", "backend", "out"), "an option of `duoln sample`"),
    "evaluating": (("help", "backend", "json"), "an option of `duoln evaluate`")}
"""For each class of settings the names that its fields cannot have, and what has them."""

ALL = "all"
"""The word for every variant on a command line."""


class ContractError(TypeError):
    """An attribute or a result is not as the contract of `Task` says."""


def _expect(good: Any, expected: str, value: Any, advice: str = "") -> None:
    if not good:
        raise ContractError(f"expected {expected}, found {kind_of(value)}{advice}")


def kind_of(value: Any) -> str:
    """A value in a few words. No code of its class is called, because that code may be broken."""
    if type(value) in (str, int, float, bool, type(None)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}..."
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return type(value).__name__


def _is(good: Callable[[Any], Any], expected: str) -> Callable[[Any], Any]:
    """A check that gives the value back if it is good."""
    def check(value: Any) -> Any:
        _expect(good(value), expected, value)
        return value

    return check


def _instance(kind: type, *more: type) -> Callable[[Any], Any]:
    return _is(lambda value: isinstance(value, (kind, *more)), f"an object of class {kind.__name__}")


# Attributes ------------------------------------------------------------------------------------------------

def check_attributes(task: Task) -> None:
    """Check the attributes of a task.

    Raises:
        PluginError: an attribute cannot be read, or is not as the contract says; the message names it.
    """
    for attribute, check in _ATTRIBUTES.items():
        try:
            check(getattr(task, attribute))
        except (KeyboardInterrupt, MemoryError):
            raise
        except ContractError as error:
            raise PluginError(f"{_who(task)}: {attribute}: {error}") from None
        except BaseException as error:
            raise PluginError(f"{_who(task)}: {attribute}: {type(error).__name__}: {words_of(error)}") from None


def _who(task: Task) -> str:
    """The task by its name, or by its class if the name is not valid."""
    name = vars(task).get("name", vars(type(task)).get("name"))
    return f"task '{name}'" if type(name) is str and NAME.fullmatch(name) else f"a task of class {type(task).__name__}"


_name = _is(lambda value: type(value) is str and NAME.fullmatch(value), f"a name of {_NAME_WORDS}")
_text = _is(lambda value: type(value) is str, "a text")


def _by_name(value: Any) -> None:
    """Names with the settings that each stands for."""
    _expect(isinstance(value, Mapping), "settings by name", value)
    names = list(value)
    for name in names:
        _name(name)
    if len({name.lower() for name in names}) < len(names):
        raise ContractError(f"expected names that differ in more than case, found {', '.join(names)}")
    for name in names:
        _expect(isinstance(value[name], Mapping) and all(type(key) is str for key in value[name]),
                f"settings as '{name}'", value[name])


def _variants(value: Any) -> None:
    _by_name(value)
    if ALL in list(value):
        raise ContractError(f"expected another name than '{ALL}', which stands for every variant")
    if not value:
        raise ContractError("expected one or more, found none; {'plain': {}} is one without changes")


def _config(value: Any) -> None:
    _expect(isinstance(value, type) and issubclass(value, Config) and dataclasses.is_dataclass(value),
            "a dataclass that extends Config", value)
    _fields(value, "config")


def _options(attribute: str) -> Callable[[Any], None]:
    """The check of a class of options, which a task need not have."""
    def check(value: Any) -> None:
        if value is not None:
            _expect(isinstance(value, type) and dataclasses.is_dataclass(value), "a dataclass or None", value)
            _fields(value, attribute)

    return check


def _fields(value: Any, attribute: str) -> None:
    """The fields of a dataclass, which a command line and a run's folder can hold."""
    kinds = typing.get_type_hints(value)
    reserved, owner = RESERVED[attribute]
    fields = {field.name for field in dataclasses.fields(value)}
    for name in vars(value).get("__annotations__", {}):
        if name not in fields and typing.get_origin(kinds[name]) is not typing.ClassVar:
            raise ContractError(f"{name}: expected @dataclass(frozen=True) above {value.__name__}, found none; "
                                f"{name} would be no setting")
    of_all = typing.get_type_hints(Config) if attribute == "config" else {}
    for field in dataclasses.fields(value):
        if field.name in reserved:
            raise ContractError(f"expected another name than '{field.name}', which is {owner}")
        if kinds[field.name] != of_all.get(field.name, kinds[field.name]):
            raise ContractError(f"{field.name}: expected the type {kind_in_words(of_all[field.name])}, which every "
                                f"task has; found {kind_in_words(kinds[field.name])}")
        if isinstance(field.default, np.generic):
            raise ContractError(f"{field.name}: expected a default of Python's own types, found {field.default!r}; "
                                ".item() gives one")
        if not is_readable(kinds[field.name]):
            raise ContractError(f"{field.name}: expected a type of int, float, bool, str, None, Literal, and tuples, "
                               "lists and unions of them, such as tuple[int, ...]; found "
                               f"{kind_in_words(kinds[field.name])}")
        if not field.init or (field.default is field.default_factory is dataclasses.MISSING):
            raise ContractError(f"{field.name}: expected a default, and an argument of the class, found none")


def _columns(value: Any) -> None:
    _expect(isinstance(value, list | tuple) and all(isinstance(column, Column) for column in value),
            "a tuple of Column", value)
    for column in value:
        if not all(type(text) is str for text in column):
            raise ContractError(f"expected a column of texts, found {', '.join(map(kind_of, column))}")
        format(0.5, column.form)


def _is_corpora(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        type(name) is str and isinstance(corpus, list | tuple) and all(
            isinstance(files, list | tuple) and files and all(type(file) is str for file in files) for files in corpus)
        for name, corpus in value.items())


_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "name": _name, "title": _text, "paper": _text, "config": _config, "presets": _by_name, "variants": _variants,
    "references": _is(lambda value: isinstance(value, Mapping) and all(
        type(text) is str for pair in value.items() for text in pair), "texts by variant"),
    "columns": _columns,
    "selection": _is(lambda value: value is None or (
        isinstance(value, Sequence) and len(value) == 2 and type(value[0]) is str
        and value[1] in ("lowest", "highest")), "None, or a metric and 'lowest' or 'highest'"),
    "x_axis": _is(lambda value: value in ("epoch", "update"), "'epoch' or 'update'"),
    "corpora": _is(_is_corpora, "sets of files by name, such as {'a': [('a/x.npy', 'a/y.npy')]}"),
    "batch_axes": _is(lambda value: isinstance(value, Mapping) and all(
        type(key) is str and (axis is None or type(axis) is int) for key, axis in value.items()), "axes by name"),
    "sampling": _options("sampling"), "sample_name": _text, "evaluating": _options("evaluating"), "peers": _by_name}


# Results ---------------------------------------------------------------------------------------------------

def accept_any(value: Any) -> Any:
    """The result of a call of which the contract says nothing."""
    return value


def checked_batch(value: Any) -> Any:
    """A batch of NumPy arrays by name.

    Raises:
        ContractError: it is none.
    """
    _expect(isinstance(value, Mapping) and value and all(type(key) is str for key in value),
            "a batch of arrays by name", value)
    for name, array in tree.items(dict(value)):
        _expect(isinstance(array, np.ndarray) and array.dtype.kind in "fiub",
                f"an array of numbers as '{name}' of a batch", array)
    return value


def _splits(value: Any) -> Splits:
    _expect(isinstance(value, Splits), "Splits", value)
    dataset, count, remarks = value.dataset, value.steps_per_epoch, value.remarks
    _expect(isinstance(dataset, Dataset) and type(dataset.name) is str, "a Dataset with a name", dataset)
    _expect(dataset.provenance in get_args(Provenance), f"a provenance of {', '.join(get_args(Provenance))}",
            dataset.provenance)
    _expect(callable(value.train), "a function from an update to its batch as train", value.train)
    _expect(isinstance(count, int) and not isinstance(count, bool) and count >= 1, "steps_per_epoch of at least 1",
            count)
    _expect(isinstance(value.evaluation, Mapping), "splits by name as evaluation", value.evaluation)
    evaluation = dict(value.evaluation)
    for name, split in evaluation.items():
        _expect(type(name) is str and isinstance(split, Mapping), "arrays by name as each split", split)
        arrays = [array for _, array in tree.items(dict(split)) if isinstance(array, np.ndarray)]
        if arrays and all(array.shape[:1] == (0,) for array in arrays):
            raise ContractError(f"expected examples in the split '{name}', found none")
    _expect(isinstance(remarks, list | tuple) and all(type(text) is str for text in remarks), "texts as remarks",
            remarks)
    return Splits(dataset, value.train, count, evaluation, tuple(text for text in remarks if text))


def _metrics(value: Any) -> dict[str, float]:
    _expect(isinstance(value, Mapping), "figures by name", value)
    figures: dict[str, float] = {}
    for name, figure in dict(value).items():
        _expect(type(name) is str, "a text as the name of a figure", name)
        number = figure.item() if isinstance(figure, np.generic | np.ndarray) and figure.size == 1 else figure
        _expect(isinstance(number, int | float), f"a number as '{name}'", figure)
        figures[name] = float(number)
    return figures


def _loss(value: Any) -> Any:
    advice = "; a loss of NumPy's would be a constant" if isinstance(value, np.generic | np.ndarray) else ""
    _expect(isinstance(value, Tensor), "a Tensor", value, advice)
    if value.shape != ():
        raise ContractError(f"expected a loss of shape (), found {value.shape}; ops.mean(loss) makes one of it")
    return value


def _layer_inputs(value: Any) -> dict[str, np.ndarray]:
    _expect(isinstance(value, Mapping) and len(value) > 0, "arrays by layer", value)
    inputs: dict[str, np.ndarray] = dict(value)
    for name, rows in inputs.items():
        _expect(type(name) is str, "a text as the name of a layer", name)
        _expect(isinstance(rows, np.ndarray) and rows.dtype.kind == "f" and rows.ndim == 2 and len(rows) > 0,
                f"floats (rows, units) as '{name}'", rows)
    return inputs


def _findings(value: Any) -> Any:
    _expect(isinstance(value, Findings), "Findings", value)
    _check_table(value.headings, value.rows, [value.title, *value.remarks], "a table of findings")
    json_text.dumps(value.figures)
    return value


def _check_table(headings: Sequence[Any], rows: Sequence[Sequence[Any]], others: Sequence[Any], what: str) -> None:
    for text in [*headings, *others, *(cell for row in rows for cell in row)]:
        _expect(isinstance(text, str), f"texts in {what}", text)
    _expect(all(len(row) == len(headings) for row in rows), f"rows of {len(headings)} cells", rows)


def _tables(value: Any) -> Sequence[ReferenceTable]:
    tables = _list_of(ReferenceTable)(value)
    for table in tables:
        _check_table(table.headings, table.rows, [table.where], "a table of the paper")
    return tables


def _list_of(kind: type) -> Callable[[Any], list[Any]]:
    def check(value: Any) -> list[Any]:
        _expect(isinstance(value, list | tuple), f"a list of {kind.__name__}", value)
        for item in value:
            _expect(isinstance(item, kind), f"a list of {kind.__name__}", item)
        return list(value)

    return check


RESULTS: dict[str, Callable[[Any], Any]] = {
    "data": _splits, "model": _instance(Module), "loss": _loss, "layer_inputs": _layer_inputs,
    "predict": _instance(Tensor), "metrics": _metrics, "optimizer": _instance(Optimizer, Groups),
    "reference_curves": _list_of(ReferenceCurve), "reference_tables": _tables, "sample": _list_of(Path),
    "evaluate": _findings, "pictures": _list_of(Path), "prepare": _list_of(Path), "peer": _is(callable, "a function")}
"""For each method what checks its result and copies the tables in it that a caller could change. Each raises a
`ContractError` for a result that is not as the contract of `Task` says.
"""
