"""Layers that report on their calls, while a pass over the model asks them to.

The parameters of each layer that is asked have an entry more, a number by which the layer finds where its reports
belong. It is a tensor, so that a model may map its parameters, as one in bf16 does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.nn.module import Params, branch

_NUMBER = "report"
_reports: ContextVar[list[list[Any]]] = ContextVar("reports")
"""Those of each layer that is asked."""


def is_asked(params: Params) -> bool:
    """Whether a layer with these parameters has to report."""
    return _NUMBER in params


def report(params: Params, value: Any) -> None:
    """Keep a value for the layer with these parameters, which is asked."""
    _reports.get()[int(params[_NUMBER].numpy())].append(value)


@contextmanager
def asked(name: str, params: Params, paths: Sequence[str], backend: Backend,
          ) -> Iterator[tuple[Params, list[list[Any]]]]:
    """Parameters with which the layers at these paths report, and the reports of each. `name` begins errors."""
    asking: Params = tree.map(lambda x: x, params)
    for k, path in enumerate(paths):
        at(name, asking, path)[_NUMBER] = Tensor(backend.asarray(np.int32(k)), backend)
    reports: list[list[Any]] = [[] for _ in paths]
    token = _reports.set(reports)
    try:
        yield asking, reports
    finally:
        _reports.reset(token)


def at(name: str, params: Params, path: str) -> Params:
    """The branch of the layer at a path. Raises ShapeError where there is none; `name` begins the message."""
    own = params
    for key in path.split(".") if path else ():
        own = branch(name, own, key)
    return own
