"""Layers without normalisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from duoln import ops
from duoln.core import Op, Tensor
from duoln.core.arguments import check_choice, check_flag, check_function, check_integer
from duoln.errors import DtypeError, UsageError
from duoln.nn import init
from duoln.nn.module import NOT_GIVEN, Module, Params, branch, parameter, parameters, with_attributes
from duoln.ops.norm import ACTIVATIONS, Activation
from duoln.randomness import Stream

Layer = Module | Callable[[Tensor], Tensor]


def check_sizes(name: str, **sizes: int) -> None:
    """Raises ShapeError for a size below 1, DtypeError for a size that is not an integer."""
    for role, size in sizes.items():
        check_integer(name, role, size, 1)


class Linear(Module):
    """x @ weight + bias, and an activation, "relu" or "tanh", if one is given: the same operator computes it.

        >>> layer = nn.Linear(4, 3)
        >>> params = duoln.init(layer, 0)
        >>> layer(params, duoln.tensor([[1.0, 2.0, 3.0, 4.0]])).shape
        (1, 3)

    Args:
        n_in, n_out: sizes of the input and of the output.
        bias: whether there is one; initially it is 0.
        weight_init: of `nn.init`, by default Glorot's.
        activation: "relu", "tanh" or None.

    Shape:
        x (..., n_in) -> (..., n_out); parameters weight (n_in, n_out), bias (n_out,).
    """

    def __init__(self, n_in: int, n_out: int, *, bias: bool = True, weight_init: init.Initializer = init.GLOROT,
                 activation: Activation | None = None) -> None:
        check_sizes("Linear", n_in=n_in, n_out=n_out)
        check_flag("Linear", "bias", bias)
        check_function("Linear", "weight_init", weight_init)
        check_choice("Linear", "activation", activation, ACTIVATIONS)
        self.n_in, self.n_out, self.bias, self.weight_init = n_in, n_out, bias, weight_init
        self.activation = activation

    def weights(self, rng: Stream) -> Params:
        params = {"weight": self.weight_init(rng.child("weight"), (self.n_in, self.n_out))}
        if self.bias:
            params["bias"] = init.zeros(rng, (self.n_out,))
        return params

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN) -> Tensor:
        arrays = parameters("Linear", params, ("weight", "bias") if self.bias else ("weight",))
        if self.activation:
            return ops.activated_linear(x, *arrays, activation=self.activation)
        return ops.linear(x, *arrays)


class Embedding(Module):
    """Rows of a table. The row `padding_idx` starts at 0 and has no gradient, so no optimizer moves it.

    The decay of `optim.AdamW` multiplies it with the rest of the table: 0 stays 0, and other values, such as those of
    another program, shrink unless `decays` leaves the table out.

        >>> layer = nn.Embedding(100, 8)
        >>> layer(duoln.init(layer, 0), duoln.tensor([[5, 99]], within=(0, 100))).shape
        (1, 2, 8)

    Shape:
        ids int32 (...) in 0 .. words - 1 -> (..., width); parameter table (words, width).
    """

    def __init__(self, words: int, width: int, *, padding_idx: int | None = None,
                 table_init: init.Initializer = init.UNIFORM) -> None:
        check_sizes("Embedding", words=words, width=width)
        check_function("Embedding", "table_init", table_init)
        if padding_idx is not None:
            check_integer("Embedding", "padding_idx", padding_idx, 0, words - 1)
        self.words, self.width, self.table_init, self.padding_idx = words, width, table_init, padding_idx

    def weights(self, rng: Stream) -> Params:
        table = self.table_init(rng.child("table"), (self.words, self.width))
        if self.padding_idx is not None:
            table = np.array(table)  # the initialiser may return an array of the user's
            table[self.padding_idx] = 0.0
        return {"table": table}

    def __call__(self, params: Params, ids: Tensor = NOT_GIVEN) -> Tensor:
        return ops.embedding(parameter("Embedding", params, "table"), ids, padding_idx=self.padding_idx)

    def as_linear(self, params: Params, x: Tensor) -> Tensor:
        """The product x @ table.T, such as the logits of a language model whose output has the weights of its input.

        The row `padding_idx` has a gradient here, as every word's logit has.

        Shape:
            x (..., width) -> (..., words).
        """
        return ops.linear(x, ops.matrix_transpose(parameter("Embedding", params, "table")))


class Sequential(Module):
    """Layers and functions one after another. The first one takes all inputs, as in `model(params, x, mask)`.

    Positional layers are named "0", "1", ...; keywords name them. Plain functions, such as `ops.relu`, have no
    parameters. The modules that a subclass has as attributes are children too, but not layers.

        >>> model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
        >>> params = duoln.init(model, 0)
        >>> model(params, duoln.tensor([[1.0, 2.0]])).shape
        (1, 2)
        >>> model[0], model["2"], len(model), [type(layer).__name__ for layer in model]
        (Linear(n_in=2, n_out=32), Linear(n_in=32, n_out=2), 3, ['Linear', 'ReLU', 'Linear'])
        >>> model[:2](params, duoln.tensor([[1.0, 2.0]])).shape            # the first two take the same params
        (1, 32)
    """

    def __init__(self, /, *layers: Layer, **named: Layer) -> None:
        places = {str(i): layer for i, layer in enumerate(layers)}
        if twice := [name for name in named if name in places]:
            raise UsageError(f"[Sequential] expected names other than those of the positions, {', '.join(places)}, "
                             f"found a second layer {twice[0]!r}; give all layers by position, or name these otherwise")
        self.layers = {**places, **named}
        for name, layer in self.layers.items():
            if not callable(layer):
                raise UsageError(f"[Sequential] layer {name}: expected a Module or function, "
                                 f"found {type(layer).__name__}{_how_to_give(layer)}")
            if isinstance(layer, type) and issubclass(layer, Module):
                raise UsageError(f"[Sequential] layer {name}: expected a Module or function, found the class "
                                 f"{layer.__name__}; make one, {layer.__name__}(...)")

    def children(self) -> dict[str, Module]:
        return with_attributes(self, {name: layer for name, layer in self.layers.items() if isinstance(layer, Module)})

    def _parts(self) -> dict[str, Layer]:
        return {**self.layers, **self.children()}

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers.values())

    def __getitem__(self, key: object) -> Any:
        """A layer by its place or name; by a slice, a Sequential of layers that keep their names.

        Raises:
            IndexError, KeyError: there is no such layer. DtypeError: the key is none of these.
        """
        names = list(self.layers)
        if isinstance(key, slice):
            return Sequential(**{name: self.layers[name] for name in names[key]})
        if isinstance(key, str):
            if key not in self.layers:
                raise KeyError(f"[Sequential] expected one of {', '.join(names)}, found {key!r}")
            return self.layers[key]
        place = check_integer("Sequential", "place", key)
        if not -len(names) <= place < len(names):
            raise IndexError(f"[Sequential] expected a place among {len(names)} layers, found {place}")
        return self.layers[names[place]]

    def __call__(self, params: Params, x: Any = NOT_GIVEN, *more: Any) -> Any:
        given, before = (x, *more), None
        for name, layer in self.layers.items():
            if type(given[0]) is tuple:
                _check_takes_tuple(name, layer, before)
            before = layer
            own = (branch("Sequential", params, name),) if isinstance(layer, Module) else ()
            given = (layer(*own, *given),)
        return given[0]


def _how_to_give(layer: Any) -> str:
    if isinstance(layer, Mapping):
        return "; give layers by name, nn.Sequential(**layers)"
    if isinstance(layer, tuple) and len(layer) == 2 and isinstance(layer[0], str):
        return f"; give layers by name, nn.Sequential({layer[0]}=...)"
    return "; give layers one by one, nn.Sequential(*layers)" if isinstance(layer, list | tuple) else ""


def _check_takes_tuple(name: str, layer: Any, before: Any) -> None:
    """Raises DtypeError if a layer of duoln's own, or an operator, would get the tuple that the layer before returned.

    Functions and modules of others may take it.
    """
    of_duoln = isinstance(layer, Op) or type(layer).__module__.startswith("duoln.nn.")
    if not of_duoln or isinstance(layer, Sequential):
        return
    own = type(layer).__name__ if isinstance(layer, Module) else layer.name
    source = "a tuple" if before is None else f"the tuple that {type(before).__name__} returns"
    raise DtypeError(f"[Sequential] layer {name} ({own}): expected a duoln.Tensor, found {source}; a recurrent layer "
                     "returns the pair (outputs, states): put lambda pair: pair[0] after it")
