"""Checks the results of a task's methods at once, because a later error could not name the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from duoln import tree
from duoln.core import Tensor
from duoln.data import strictjson
from duoln.nn import Module
from duoln.optim import Optimizer
from duoln.tasks.values import Dataset, Findings, Provenance, ReferenceCurve, ReferenceTable, Splits


def checked(method: str, result: Any) -> Any:
    """The checked result of a method; tables in it that a caller could change are copied.

    Raises:
        TypeError: the result is not as the contract of `Task` says.
    """
    return _CHECKS[method](result) if method in _CHECKS else result


def checked_batch(batch: Any) -> Any:
    """A batch of NumPy arrays by name.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(batch, Mapping) or not batch or not all(type(key) is str for key in batch):
        raise TypeError(f"expected a batch of arrays by name, found {kind_of(batch)}")
    for name, array in tree.items(dict(batch)):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise TypeError(f"expected an array of numbers as '{name}' of a batch, found {kind_of(array)}")
    return batch


def kind_of(value: Any) -> str:
    """A value in a few words. No code of its class is called, because that code may be broken."""
    if type(value) in (str, int, float, bool, type(None)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}..."
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    return type(value).__name__


def _splits(value: Any) -> Splits:
    _expect(isinstance(value, Splits), "Splits", value)
    dataset = value.dataset
    _expect(isinstance(dataset, Dataset) and type(dataset.name) is str, "a Dataset with a name", dataset)
    _expect(dataset.provenance in get_args(Provenance), f"a provenance of {', '.join(get_args(Provenance))}",
            dataset.provenance)
    _expect(callable(value.train), "a function from a step to its batch as train", value.train)
    count = value.steps_per_epoch
    _expect(isinstance(count, int) and not isinstance(count, bool) and count >= 1, "steps_per_epoch of at least 1",
            count)
    _expect(isinstance(value.evaluation, Mapping), "splits by name as evaluation", value.evaluation)
    evaluation = dict(value.evaluation)
    for name, split in evaluation.items():
        _expect(type(name) is str and isinstance(split, Mapping), "arrays by name as each split", split)
    remarks = value.remarks
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


def _loss(value: Any) -> Tensor:
    advice = "; a loss of NumPy's would be a constant" if isinstance(value, np.generic | np.ndarray) else ""
    _expect(isinstance(value, Tensor), "a Tensor", value, advice)
    if value.shape != ():
        raise TypeError(f"expected a loss of shape (), found {value.shape}; ops.mean(loss) makes one of it")
    result: Tensor = value
    return result


def _layer_inputs(value: Any) -> dict[str, np.ndarray]:
    _expect(isinstance(value, Mapping) and len(value) > 0, "arrays by layer", value)
    inputs: dict[str, np.ndarray] = dict(value)
    for name, rows in inputs.items():
        _expect(type(name) is str, "a text as the name of a layer", name)
        _expect(isinstance(rows, np.ndarray) and rows.dtype.kind == "f" and rows.ndim == 2 and len(rows) > 0,
                f"floats (rows, units) as '{name}'", rows)
    return inputs


def _findings(value: Any) -> Findings:
    _expect(isinstance(value, Findings), "Findings", value)
    _check_table(value.headings, value.rows, [value.title, *value.remarks], "a table of findings")
    strictjson.dumps(value.figures)
    result: Findings = value
    return result


def _check_table(headings: Sequence[Any], rows: Sequence[Sequence[Any]], others: Sequence[Any], what: str) -> None:
    texts = [*headings, *others, *(cell for row in rows for cell in row)]
    _expect(all(isinstance(text, str) for text in texts), f"texts in {what}",
            next((text for text in texts if not isinstance(text, str)), None))
    _expect(all(len(row) == len(headings) for row in rows), f"rows of {len(headings)} cells", rows)


def _curves(value: Any) -> Sequence[ReferenceCurve]:
    return _each(ReferenceCurve, value)


def _tables(value: Any) -> Sequence[ReferenceTable]:
    tables = _each(ReferenceTable, value)
    for table in tables:
        _check_table(table.headings, table.rows, [table.where], "a table of the paper")
    return tables


def _paths(value: Any) -> Sequence[Path]:
    return _each(Path, value)


def _each(kind: type, value: Any) -> list[Any]:
    _expect(isinstance(value, list | tuple), f"a list of {kind.__name__}", value)
    for item in value:
        _expect(isinstance(item, kind), f"a list of {kind.__name__}", item)
    return list(value)


def _instance(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        _expect(isinstance(value, kind), f"an object of class {kind.__name__}", value)
        return value

    return check


def _function(value: Any) -> Any:
    _expect(callable(value), "a function", value)
    return value


def _expect(good: bool, expected: str, value: Any, advice: str = "") -> None:
    if not good:
        raise TypeError(f"expected {expected}, found {kind_of(value)}{advice}")


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "data": _splits, "model": _instance(Module), "loss": _loss, "layer_inputs": _layer_inputs,
    "predict": _instance(Tensor), "metrics": _metrics, "optimizer": _instance(Optimizer), "reference_curves": _curves,
    "reference_tables": _tables, "sample": _paths, "evaluate": _findings,
    "pictures": _paths, "prepare": _paths, "peer": _function}
