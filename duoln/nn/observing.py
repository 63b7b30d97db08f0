"""A model's layers, seen from outside: a function observes their calls, or layers report on them; and the arrays of
each layer.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from duoln import tree
from duoln.backends.protocol import Backend
from duoln.core import Tensor
from duoln.core.arguments import check_function, described
from duoln.core.pytorch_names import hinted
from duoln.errors import DtypeError, DuolnError
from duoln.nn.module import Module, Params, branch_at, branch_names, list_as_dict

Tell = Callable[[str, Module, Tensor], None]
Around = Callable[[str, Module, list[Tensor], Callable[[], Any]], Any]
"""`around(path, layer, given, call)` replaces a call: `given` are the tensors of the layer, `call` runs it."""
_FLOATS = ("float", "bfloat")
_LOCK = threading.RLock()
"""Classes are changed while a model is observed, so one thread observes at a time."""
_ENTRY = "report"
_numbers = itertools.count(1)
_reports: dict[int, list[Any]] = {}
"""The reports of each layer that is asked, in any thread, by its number."""


class _Running(NamedTuple):
    """A call that has not returned."""

    path: str
    layer: Module
    params: Any


@hinted
def observed(model: Module, tell: Tell) -> contextlib.AbstractContextManager[None]:
    """Within this context `tell(path, layer, output)` gets every call of a layer of the model.

    A call is one of `layer(params, x)`, or of another public method that takes `params` first, such as
    `cell.sequence(params, x)`, if an argument has a tensor. The output is the first tensor with floats of the result. A
    method that a layer calls on itself is part of the call. Calls inside a compiled step that is repeated are not seen,
    because it repeats operators only.

    The output may belong to a gradient that is still being computed. An error of a layer is raised as it is, and its
    message begins with the path of the layer and the shapes that it got.

        with duoln.observed(model, lambda path, layer, output: print(path, output.shape)):
            model(params, x)

    Args:
        model: the model.
        tell: takes the path in the parameters, the layer and the output.

    Raises:
        DtypeError: `model` is not a Module, or `tell` no function.
    """
    if not isinstance(model, Module):
        raise DtypeError(f"[observed] model: expected a Module, found {described(model)}")
    check_function("observed", "tell", tell)

    def around(path: str, layer: Module, given: list[Tensor], call: Callable[[], Any]) -> Any:
        result = call()
        output = next((x for x in tree.leaves(result) if isinstance(x, Tensor) and x.dtype.startswith(_FLOATS)), None)
        if output is not None:
            tell(path, layer, output)
        return result

    return calls_through(model, around)


@contextlib.contextmanager
def calls_through(model: Module, around: Around) -> Iterator[None]:
    """Within this context `around` runs every call of a layer of the model, of those that `observed` tells of."""
    paths: dict[int, list[str]] = {}
    for path, layer in model.modules():
        paths.setdefault(id(layer), []).append(path)
    running: list[_Running] = []
    kinds = {type(layer) for _, layer in model.modules()}
    with _LOCK, contextlib.ExitStack() as undo:
        functions = [(kind, *each) for kind in kinds for each in _calls_of(kind)]  # before any of them is replaced
        for kind, name, function in functions:
            if name in vars(kind):
                undo.callback(setattr, kind, name, vars(kind)[name])
            else:  # the class inherits it
                undo.callback(delattr, kind, name)
            setattr(kind, name, _wrap_method(function, paths, running, around))
        yield


def own_arrays(layer: Module, params: Params, path: str) -> list[Any]:
    """The arrays of the layer at `path`, without those of the layers in it; `params` is the tree of the whole model."""
    children = branch_names(layer.children())
    return [leaf for key, entry in branch_at("own_arrays", params, path).items() if key not in children
            for leaf in tree.leaves(entry)]


def _calls_of(kind: type[Module]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The call of a class, and its public methods that take `params` first, by name."""
    for name in dir(kind):
        function = inspect.getattr_static(kind, name)
        if inspect.isfunction(function) and (name == "__call__" or not name.startswith("_")):
            _, *first = inspect.signature(function).parameters
            if name == "__call__" or first[:1] == ["params"]:
                yield name, function


def _wrap_method(function: Callable[..., Any], paths: dict[int, list[str]], running: list[_Running],
             around: Around) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(self: Module, /, *args: Any, **kwargs: Any) -> Any:
        given = [leaf for leaf in tree.leaves([*args[1:], *kwargs.values()]) if isinstance(leaf, Tensor)]
        is_own = running and running[-1].layer is self
        if id(self) not in paths or is_own or not given:
            return function(self, *args, **kwargs)
        params = args[0] if args else kwargs.get("params")
        path = _path_of(paths[id(self)], params, running)
        running.append(_Running(path, self, params))
        try:
            return around(path, self, given, lambda: function(self, *args, **kwargs))
        except Exception as error:
            _locate(error, path, self, given)
            raise
        finally:
            running.pop()

    return called


def _path_of(paths: list[str], params: Any, running: list[_Running]) -> str:
    """The path of a call of a layer that is at several places of a model: the one whose parameters it got."""
    for path in paths if len(paths) > 1 else ():
        for caller in running:
            if path.startswith(f"{caller.path}." if caller.path else "") and path != caller.path:
                below = path[len(caller.path) + 1:] if caller.path else path
                if _branch(caller.params, below) is params:
                    return path
    return paths[0]


def _branch(params: Params, path: str) -> Any:
    for key in path.split("."):
        params = list_as_dict(params).get(key, {}) if isinstance(params, dict | list | tuple) else {}
    return params


def _locate(error: Exception, path: str, layer: Module, given: list[Tensor]) -> None:
    """Put the innermost layer's path and what it got before the message of an error."""
    if hasattr(error, "layer_path"):
        return
    error.layer_path = path  # type: ignore[attr-defined]
    shapes = ", ".join(f"{x.shape} {x.dtype}" for x in given)
    where = f"[{path + ': ' if path else ''}{type(layer).__name__}] given {shapes}"
    if isinstance(error, DuolnError):
        error.args = (f"{where}: {error}", *error.args[1:])
    else:
        error.add_note(where)


# Reports -----------------------------------------------------------------------------------------------
# The parameters of each layer that is asked have an entry more, whose shape has a number by which the layer finds where
# its reports belong. It is a tensor of floats without values, so that a model may map its parameters, differentiate by
# them, or hand them to a compiled function.

def must_report(params: Params) -> bool:
    """True if a layer with these parameters has to report."""
    return _ENTRY in params


def report(params: Params, value: Any) -> None:
    """Keep a value for the layer with these parameters, which is asked."""
    _reports[params[_ENTRY].shape[0]].append(value)


@contextlib.contextmanager
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
