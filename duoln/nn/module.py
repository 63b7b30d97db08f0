"""What every layer is: hyper-parameters, child modules, a way to start, and a function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from duoln.core import Tensor
from duoln.core.arguments import described
from duoln.errors import DtypeError, ShapeError
from duoln.randomness import Stream

Params = dict[str, Any]


class Module:
    """A layer or model. It holds no arrays: `init` makes a nested dict of them, and calls take it back.

    A subclass assigns child modules to attributes, overrides `weights` if it has arrays of its own, and
    `__call__`. The parameters of a child are under the attribute's name.

        class Classifier(nn.Module):
            def __init__(self, n_in, classes):
                self.hidden, self.out = nn.Linear(n_in, 100), nn.Linear(100, classes)

            def __call__(self, params, x):
                return self.out(params["out"], ops.relu(self.hidden(params["hidden"], x)))
    """

    def weights(self, rng: Stream) -> Params:
        """This module's own arrays at the start, without its children's."""
        return {}

    def children(self) -> dict[str, Module]:
        """Child modules by name: by default, the attributes that are modules."""
        return {name: child for name, child in vars(self).items() if isinstance(child, Module)}

    def init(self, rng: Stream) -> Params:
        """Starting parameters, as NumPy arrays. Each array has a random stream of its own name.

        Raises:
            DtypeError: no stream, such as a seed without one.
        """
        if not isinstance(rng, Stream):
            raise DtypeError(f"[{type(self).__name__}] rng: expected a Stream, found {described(rng)}; make one "
                             "of a seed with duoln.randomness.Stream(seed, name)")
        params = self.weights(rng)
        for name, child in self.children().items():
            params[name] = child.init(rng.child(name))
        return params

    def modules(self, path: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, each with its dotted path in the parameters."""
        yield path, self
        for name, child in self.children().items():
            yield from child.modules(f"{path}.{name}" if path else name)

    def __call__(self, params: Any, x: Any) -> Any:
        raise TypeError(f"{type(self).__name__} does not define __call__")


def parameter(name: str, params: Params, key: str) -> Tensor:
    """`params[key]`, an array, with an error that says which layer missed what."""
    found: Tensor = _entry(name, params, key)
    return found


def branch(name: str, params: Params, key: str) -> Params:
    """`params[key]`, the parameters of a child, with an error that says which layer missed what."""
    found: Params = _entry(name, params, key)
    return found


def _entry(name: str, params: Params, key: str) -> Any:
    if isinstance(params, dict) and key in params:
        return params[key]
    has = ", ".join(sorted(params)) if isinstance(params, dict) else type(params).__name__
    raise ShapeError(f"[{name}] expected parameters with '{key}', found {has or 'none'}")
