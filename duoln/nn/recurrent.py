"""Recurrent layers: RNN, LSTM and GRU over sequences, which are time-major, (T, B, in)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, ClassVar

from duoln import ops
from duoln.core import Tensor
from duoln.core.arguments import check_flag
from duoln.core.pytorch_names import MASK, hinted
from duoln.core.spec import check_tensors
from duoln.errors import ShapeError, UsageError
from duoln.nn.cells import (
    OPTIONS,
    GRUCell,
    LSTMCell,
    RecurrentCell,
    RNNCell,
    States,
    described_states,
    reject_unknown_options,
)
from duoln.nn.dropout import Dropout, dropout_of
from duoln.nn.layers import check_sizes
from duoln.nn.module import NOT_GIVEN, Module, Params, branch, with_attributes
from duoln.ops.recurrent.variants import Norm


class Recurrent(Module):
    """Layers of one kind of cell over sequences.

    `layer(params, x)` returns the outputs of the last layer and the last states of every layer and direction,
    first to last, forward before backward. The arguments are those of `LSTM`, with the options of all cells.
    """

    cell_type: ClassVar[type[RecurrentCell]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "cell_type" in vars(cls) and "__init__" not in vars(cls):
            own = {**inspect.signature(cls.__init__).parameters, **inspect.signature(cls.cell_type.__init__).parameters}
            cls.__init__ = reject_unknown_options(  # type: ignore[method-assign]
                cls.__init__, [each for name, each in own.items() if name not in ("cell_options", "name")])

    def __init__(self, n_in: int, n_hidden: int, *, norm: Norm = "none", layers: int = 1, bidirectional: bool = False,
                 dropout: float | Dropout = 0.0, return_sequences: bool = True, batch_first: bool = False,
                 **cell_options: Any) -> None:
        kind = type(self).__name__
        check_sizes(kind, n_in=n_in, n_hidden=n_hidden, layers=layers)
        drop = dropout_of(kind, dropout)
        if drop.p and layers == 1:
            raise UsageError(f"[{kind}] dropout: expected 0 for one layer, because it acts between layers, found "
                             f"{drop.p}; nn.Dropout drops elsewhere")
        self.bidirectional = check_flag(kind, "bidirectional", bidirectional)
        self.return_sequences = check_flag(kind, "return_sequences", return_sequences)
        self.batch_first = check_flag(kind, "batch_first", batch_first)
        self.n_in, self.n_hidden, self.layers, self.dropout = n_in, n_hidden, layers, drop.p
        self.directions = ("forward", "backward") if bidirectional else ("forward",)
        self.cells: dict[str, RecurrentCell] = {}
        self.dropouts = {f"dropout{k}": copy(drop) for k in range(1, layers if drop.p else 1)}
        for k in range(layers):
            width = n_in if k == 0 else len(self.directions) * n_hidden
            for direction in self.directions:
                cell = self.cell_type(width, n_hidden, norm=norm, name=kind, **cell_options)
                self.cells[f"{direction}{k}"] = cell
        self.norm = self.cells["forward0"].norm

    def children(self) -> dict[str, Module]:
        return with_attributes(self, {**self.cells, **self.dropouts})

    def _settings(self) -> Iterator[str]:
        yield from super()._settings()
        of_cells = self.cells["forward0"]._settings()
        yield from (setting for setting in of_cells if setting.partition("=")[0] in OPTIONS)

    def _parts(self) -> dict[str, Module]:
        own = self.cells.keys() | self.dropouts.keys()  # the settings of the layer already describe its cells
        return {name: child for name, child in self.children().items() if name not in own}

    def first_states(self, params: Params, batch: int) -> list[States]:
        """The states of a batch before its first time step: zeros, or the learned states, as `states=` takes them."""
        return [cell.first_states(branch(type(self).__name__, params, name), batch)
                for name, cell in self.cells.items()]

    @hinted
    def __call__(self, params: Params, x: Tensor = NOT_GIVEN, states: Sequence[States] | None = None,
                 mask: Tensor | None = None) -> tuple[Tensor, list[States]]:
        """Run the layers.

        Raises:
            ShapeError: the number of states does not fit the layers.
        """
        kind = type(self).__name__
        if x is NOT_GIVEN:
            branch(kind, params, next(iter(self.cells)))
        check_tensors(kind, x)
        self._check_states(states)
        if self.batch_first:
            x, mask = self._time_major(x, mask)
        given: dict[str, States | None] = dict.fromkeys(self.cells)
        if states is not None:
            given.update(zip(self.cells, states, strict=True))
        last: list[States] = []
        for k in range(self.layers):
            if dropout := self.dropouts.get(f"dropout{k}"):
                x = dropout(branch(kind, params, f"dropout{k}"), x)
            outs = []
            for direction in self.directions:
                name = f"{direction}{k}"
                out, state = self.cells[name].sequence(branch(kind, params, name), x, given[name], mask,
                                                       reverse=direction == "backward")
                outs.append(out)
                last.append(state)
            x = outs[0] if len(outs) == 1 else ops.concat(*outs, axis=-1)
        if self.return_sequences:
            return (ops.moveaxis(x, 1, 0) if self.batch_first else x), last
        ends = [state[0].astype(x.dtype) for state in last[-len(self.directions):]]
        return ends[0] if len(ends) == 1 else ops.concat(*ends, axis=-1), last

    def _time_major(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Input and mask with the time first, from those with the batch first."""
        kind = type(self).__name__
        if x.ndim != 3:
            raise ShapeError(f"[{kind}] expected x (batch, time, in), found shape {x.shape}")
        if mask is None:
            return ops.moveaxis(x, 1, 0), None
        check_tensors(kind, x, mask)
        if mask.shape != x.shape[:2]:
            raise ShapeError(f"[{kind}] mask: expected shape {x.shape[:2]}, found {mask.shape}")
        return ops.moveaxis(x, 1, 0), ops.matrix_transpose(mask)

    def _check_states(self, states: Any) -> None:
        """Raises ShapeError unless there is an entry for each layer and direction; its form is checked by the cell."""
        count = len(self.cells)
        several = isinstance(states, tuple | list)
        if states is None or (several and len(states) == count and not any(isinstance(s, Tensor) for s in states)):
            return
        form = next(iter(self.cells.values())).state_form
        advice = f"; a mask goes by name, mask={MASK}" if isinstance(states, Tensor) else ""
        raise ShapeError(f"[{type(self).__name__}] states: expected [{', '.join([form] * min(count, 2))}"
                         f"{', ...' if count > 2 else ''}], {form} for each layer and direction, {count} in all, found "
                         f"{described_states(states)}{advice}")


class RNN(Recurrent):
    """tanh RNN layers over sequences (eq. 4 of the paper with `norm="layer"`).

    Args:
        n_in, n_hidden, layers, bidirectional, dropout, return_sequences, batch_first: see `LSTM`.
        norm: "none", "layer", "layer-theano", "layer-per-gate" or "batch", see `duoln help recurrent`.
        bias, learned_state, eps, gain, gradient_limit, input_init, recurrent_init: see `RecurrentCell`.

    Shape:
        As for `LSTM`; the last states are (h,).
    """

    cell_type = RNNCell


class LSTM(Recurrent):
    """LSTM layers over sequences (eq. 20-22 of the paper with `norm="layer"`).

        >>> layer = nn.LSTM(8, 16, norm="layer", layers=2)
        >>> params = duoln.init(layer, 0)
        >>> x = duoln.tensor(np.zeros((5, 3, 8), np.float32))      # time, batch, in
        >>> mask = duoln.tensor(np.arange(5)[:, None] < np.array([5, 2, 4]))
        >>> outputs, states = layer(params, x, mask=mask)
        >>> outputs.shape, [(h.shape, c.shape) for h, c in states]
        ((5, 3, 16), [((3, 16), (3, 16)), ((3, 16), (3, 16))])

    Args:
        n_in: size of the input.
        n_hidden: size of the state.
        norm: "none" is the plain LSTM; "layer" is the paper's, "layer-cell" its eq. 29-31; "layer-theano",
            "layer-per-gate" and "batch" are those of published code, the others are for comparisons, see `duoln help
            recurrent`.
        layers: the number of layers; each one takes the outputs of the one before.
        bidirectional: run each layer in both directions; outputs are (..., 2 n_hidden), forward first.
        dropout: the share of values dropped between layers, by the masks of `nn.DropoutMasks`; or an `nn.Dropout`, of
            which each place has a copy.
        return_sequences: return the outputs of all time steps (T, B, ...), or of the last one (B, ...).
        batch_first: x, the mask and the outputs of all time steps are (B, T, ...).
        bias, forget_bias, learned_state, eps, gain, gradient_limit, input_init, recurrent_init: see `RecurrentCell`.

    Shape:
        x (T, B, n_in), mask bool (T, B) or None -> (T, B, directions * n_hidden), and for each layer and direction the
        last states (h, c), each (B, n_hidden).
    """

    cell_type = LSTMCell


class GRU(Recurrent):
    """GRU layers over sequences (eq. 26-28 of the paper with `norm="layer"`).

        >>> layer = nn.GRU(8, 16, norm="layer", bidirectional=True)
        >>> outputs, states = layer(duoln.init(layer, 0), duoln.tensor(np.zeros((5, 3, 8), np.float32)))
        >>> outputs.shape, len(states)
        ((5, 3, 32), 2)

    Args:
        n_in, n_hidden, layers, bidirectional, dropout, return_sequences, batch_first: see `LSTM`.
        norm: "none", "recurrent-bias" (PyTorch's GRU), "layer", "layer-theano", "layer-per-gate" or "batch", see
            `duoln help recurrent`.
        bias, update_gate, learned_state, eps, gain, gradient_limit, input_init, recurrent_init: see `RecurrentCell`.

    Shape:
        As for `LSTM`; the last states are (h,).
    """

    cell_type = GRUCell
