"""Layers that report on their calls, while a pass over the model asks them to.

The parameters of each layer that is asked have an entry more, whose shape has a number by which the layer finds where
its reports belong. It is a tensor of floats without values, so that a model may map its parameters, differentiate by
them, or hand them to a compiled function.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.nn.module import Params, branch_at

_ENTRY = "report"
_numbers = itertools.count(1)
_reports: dict[int, list[Any]] = {}
"""The reports of each layer that is asked, in any thread, by its number."""


def must_report(params: Params) -> bool:
    """True if a layer with these parameters has to report."""
    return _ENTRY in params


def report(params: Params, value: Any) -> None:
    """Keep a value for the layer with these parameters, which is asked."""
    _reports[params[_ENTRY].shape[0]].append(value)


@contextmanager
def collect_reports(name: str, params: Params, paths: Sequence[str], backend: Backend,
          ) -> Iterator[tuple[Params, list[list[Any]]]]:
    """Parameters with which the layers at these paths report, and the reports of each. `name` begins errors."""
    asking: Params = tree.map(lambda x: x, params)
    reports: dict[int, list[Any]] = {next(_numbers): [] for _ in paths}
    for path, number in zip(paths, reports, strict=True):
        entry = backend.asarray(np.empty((number, 0), np.float32))
        branch_at(name, asking, path)[_ENTRY] = Tensor(entry, backend)
    _reports.update(reports)
    try:
        yield asking, list(reports.values())
    finally:
        for number in reports:
            del _reports[number]
