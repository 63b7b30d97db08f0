"""Recurrent layers: RNN, LSTM and GRU over sequences, and their cells for models with feedback.

Sequences are time-major, (T, B, in).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from duoln import ops
from duoln.core import Tensor
from duoln.core.arguments import ABOVE_0, BELOW_1, check_choice, check_flag, check_function, check_number, described
from duoln.core.pytorch_names import OF_RECURRENT, how_to_name
from duoln.errors import ShapeError, UsageError
from duoln.nn import init, population, reports
from duoln.nn.dropout import Dropout
from duoln.nn.layers import check_sizes
from duoln.nn.module import NOT_GIVEN, Module, Params, branch, parameter, parameters
from duoln.ops.common import check_tensors
from duoln.ops.norm import EpsilonPlace, check_epsilon
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.sequences import check_cell, walk
from duoln.ops.recurrent.variants import GATES, Cell, Norm, check_variant, has_bias, norm_shapes, state_dtype
from duoln.randomness import Stream

States = tuple[Tensor, ...]
UpdateGate = Literal["renews", "keeps"]
_OPTIONS = ("learned_state", "forget_bias", "eps", "eps_place", "gain", "update_gate", "remat", "gradient_limit",
            "input_init", "recurrent_init")
"""What a layer hands on to its cells."""


class RecurrentCell(Module):
    """One cell: `cell(params, x, states)` computes one time step, `cell.sequence(...)` computes a sequence.

    Initially the recurrent weights of each gate are orthogonal, input weights are uniform in +-0.1, biases are 0, and
    gains are 1, or 0.1 for batch norm (Cooijmans et al. 2017).

    Args:
        n_in: size of the input.
        n_hidden: size of the state.
        norm: a variant of `ops.recurrent.NORMS`; "layer" is the paper's.
        learned_state: whether the first state is a parameter, initially 0.
        forget_bias: the initial bias of an LSTM's forget gate; the paper has none.
        remat: keep fewer values for an LSTM's gradient and compute them again, see `ops.lstm`.
        gradient_limit: a bound on the gradients of the states between the time steps of a sequence, see `ops.lstm`;
            a single time step has none.
        eps, eps_place: as in `ops.layer_norm`.
        gain: the initial gain of the norms. The bias of "recurrent-bias" starts at 0.
        update_gate: what a GRU's update gate of 1 does to the state. It "renews" it in eq. 25-28 of the paper,
            h = (1 - z) h + z h'; it "keeps" it in the published code of the paper's authors, h = z h + (1 - z) h'. One
            is the other with all weights of that gate negated. Norms over both gates together allow this if their gains
            start at -`gain` in that gate, and so "keeps" starts them. Without norms nothing differs: weights are
            drawn symmetrically around 0.
        input_init, recurrent_init: the initialisers of each gate's weights.
        name: the first word of errors; by default the class.

    Raises:
        UsageError: the variant is unknown. ShapeError: a size is below 1.
    """

    cell: ClassVar[Cell]
    _step: ClassVar[Callable[..., Any]]
    _sequence: ClassVar[Callable[..., Any]]

    def __init__(self, n_in: int, n_hidden: int, norm: Norm = "none", learned_state: bool = False,
                 forget_bias: float = 0.0, eps: float = 1e-5, eps_place: EpsilonPlace = "inside",
                 gain: float | None = None, update_gate: UpdateGate = "renews", remat: bool = False,
                 gradient_limit: float | None = None,
                 input_init: init.Initializer | None = None, recurrent_init: init.Initializer = init.ORTHOGONAL,
                 name: str | None = None) -> None:
        self._name = name or type(self).__name__
        check_sizes(self._name, n_in=n_in, n_hidden=n_hidden)
        check_variant(self.cell, norm, self._name)
        check_number(self._name, "forget_bias", forget_bias)
        check_epsilon(self._name, eps, eps_place)
        check_number(self._name, "gain", 1.0 if gain is None else gain)
        check_choice(self._name, "update_gate", update_gate, get_args(UpdateGate))
        check_flag(self._name, "learned_state", learned_state)
        check_flag(self._name, "remat", remat)
        check_number(self._name, "gradient_limit", 1.0 if gradient_limit is None else gradient_limit, ABOVE_0)
        check_function(self._name, "input_init", init.zeros if input_init is None else input_init)
        check_function(self._name, "recurrent_init", recurrent_init)
        if forget_bias and not (self.cell == "lstm" and has_bias(self.cell, norm)):
            raise UsageError(f"[{self._name}] norm '{norm}' has no bias of a forget gate to start at {forget_bias}")
        if remat and self.cell != "lstm":
            raise UsageError(f"[{self._name}] expected remat for an LSTM only")
        if update_gate != "renews" and self.cell != "gru":
            raise UsageError(f"[{self._name}] expected an update_gate for a GRU only, found {update_gate!r}")
        self.n_in, self.n_hidden, self.norm, self.learned_state = n_in, n_hidden, norm, learned_state
        self.gradient_limit = gradient_limit
        self.options: dict[str, Any] = {"remat": True} if remat else {}
        self.forget_bias, self.eps, self.eps_place = forget_bias, eps, eps_place
        self.gain, self.update_gate = gain, update_gate
        self.input_init, self.recurrent_init = input_init or init.UNIFORM, recurrent_init
        self.norm_names = tuple(norm_shapes(self.cell, norm, n_hidden))
        self.gathers = norm == "batch"

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("h", "c") if self.cell == "lstm" else ("h",)

    @property
    def state_form(self) -> str:
        """The tuple of states, as it is written."""
        return "(h, c)" if self.cell == "lstm" else "(h,)"

    def weights(self, rng: Stream) -> Params:
        def by_gate(name: str, start: init.Initializer, rows: int) -> np.ndarray:
            return np.concatenate([start(rng.child(f"{name}.{k}"), (rows, self.n_hidden))
                                   for k in range(GATES[self.cell])], axis=1)

        params: Params = {"w_x": by_gate("w_x", self.input_init, self.n_in),
                          "w_h": by_gate("w_h", self.recurrent_init, self.n_hidden)}
        if has_bias(self.cell, self.norm):
            params["bias"] = np.zeros(GATES[self.cell] * self.n_hidden, np.float32)
            params["bias"][:self.n_hidden] = self.forget_bias
        gain = self.gain if self.gain is not None else (0.1 if self.norm == "batch" else 1.0)
        for name, shape in norm_shapes(self.cell, self.norm, self.n_hidden).items():
            params[name] = np.full(shape, gain if name.startswith("gain") else 0.0, np.float32)
            if self.update_gate == "keeps" and name.startswith("gain"):
                params[name][:self.n_hidden] *= -1  # the update gate comes first
        if self.learned_state:
            params |= {f"{name}0": np.zeros(self.n_hidden, np.float32) for name in self.state_names}
        return params

    def first_states(self, params: Params, batch: int) -> States:
        """The states of a batch before the first time step: zeros, or the learned states.

        Beside weights of 16 bits an LSTM's cell and a GRU's state are float32, because each step adds little to them.
        """
        like = parameter(self._name, params, "w_h")
        check_tensors(self._name, like)
        shape = (batch, self.n_hidden)
        dtypes = [state_dtype(self.cell, name, like.dtype) for name in self.state_names]
        if self.learned_state:
            learned = parameters(self._name, params, [f"{name}0" for name in self.state_names])
            return tuple(ops.broadcast_to(state.astype(dtype), shape=shape)
                         for state, dtype in zip(learned, dtypes, strict=True))
        zeros = {dtype: ops.zeros(shape, like.backend, dtype) for dtype in dict.fromkeys(dtypes)}
        return tuple(zeros[dtype] for dtype in dtypes)

    def _states(self, params: Params, batch: int, given: States | None) -> States:
        """The states that were given, or the first ones."""
        if given is None:
            return self.first_states(params, batch)
        count = len(self.state_names)
        if not isinstance(given, tuple | list) or len(given) != count:
            raise ShapeError(f"[{self._name}] states: expected {self.state_form}, found {_described_states(given)}")
        return tuple(given)

    def _arrays(self, params: Params) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Tensor]]:
        w_x, w_h, *norms = parameters(self._name, params, ("w_x", "w_h", *self.norm_names))
        return w_x, w_h, params.get("bias"), dict(zip(self.norm_names, norms, strict=True))

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN, states: States | None = None) -> States:
        """One time step: x (B, n_in) and the states (B, n_hidden), or None for the first -> the next states."""
        if x is NOT_GIVEN:
            parameter(self._name, params, "w_x")
        check_tensors(self._name, x)
        if x.ndim != 2:
            raise ShapeError(f"[{self._name}] expected x (batch, in), found shape {x.shape}")
        self._check_width(x)
        states = self._states(params, x.shape[0], states)
        w_x, w_h, bias, norms = self._arrays(params)
        if self._has_population(params):
            raise UsageError(f"[{self._name}] expected a sequence, because each of its time steps has a population's "
                             "statistics of its own, found one time step; call cell.sequence(params, x)")
        new = self._step(x, *states, w_x, w_h, bias, norms, norm=self.norm, eps=self.eps, eps_place=self.eps_place)
        return new if isinstance(new, tuple) else (new,)

    def _check_width(self, x: Tensor) -> None:
        if x.shape[-1] != self.n_in:
            raise ShapeError(f"[{self._name}] expected x with a last axis of {self.n_in}, found shape {x.shape}")

    def sequence(self, params: Params, x: Tensor, states: States | None = None, mask: Tensor | None = None,
                 reverse: bool = False) -> tuple[Tensor, States]:
        """A sequence: x (T, B, n_in) -> hidden states (T, B, n_hidden) and the last states."""
        check_tensors(self._name, x)
        if x.ndim != 3:
            raise ShapeError(f"[{self._name}] expected x (time, batch, in), found shape {x.shape}")
        self._check_width(x)
        states = self._states(params, x.shape[1], states)
        w_x, w_h, bias, norms = self._arrays(params)
        if self._has_population(params):
            return self._by_population(params, x, states, mask, reverse)
        hidden, *last = self._sequence(x, *states, w_x, w_h, bias, mask, norms, norm=self.norm, eps=self.eps,
                                       eps_place=self.eps_place, reverse=reverse,
                                       gradient_limit=self.gradient_limit, **self.options)
        return hidden, tuple(last)

    def _has_population(self, params: Params) -> bool:
        """Whether the parameters have statistics of a population, or these are to be gathered."""
        return self.norm == "batch" and (reports.is_asked(params) or "mean_x" in params)

    def _by_population(self, params: Params, x: Tensor, states: States, mask: Tensor | None,
                       reverse: bool) -> tuple[Tensor, States]:
        """A sequence by the statistics of a population; or by those of its batch, which are gathered."""
        w_x, w_h, bias, norms = self._arrays(params)
        check_cell(self.cell, self.norm, x, states, w_x, w_h, bias, norms, mask)
        gathered: list[population.Statistics] = []
        names = [name.removeprefix("gain_") for name in norms if name.startswith("gain_")]

        def gather(x_gates: Tensor, h_proj: Tensor, new: States) -> None:
            arrays, of_step = {"x": x_gates, "h": h_proj, "c": new[-1]}, population.Statistics()
            for name in names:
                _, mean, variance = ops.batch_norm(arrays[name], unbiased=True)
                of_step |= {f"mean_{name}": mean.numpy(), f"variance_{name}": variance.numpy()}
            gathered.append(of_step)

        if reports.is_asked(params):
            given, tell = dict[str, Tensor](), gather
        else:
            keys = [f"{kind}_{name}" for name in names for kind in ("mean", "variance")]
            given, tell = dict(zip(keys, parameters(self._name, params, keys), strict=True)), None
            x = x if mask is None else ops.where(ops.expand_dims(mask, axis=2), x, 0.0)
        steps = min((len(a) for a in given.values()), default=1)
        hidden, *last = walk(self.cell, x, states, w_x, w_h, bias, mask,
                             lambda k: norms | {key: a[min(k, steps - 1)] for key, a in given.items()},
                             Settings(self.norm, self.eps, self.eps_place), reverse, self.gradient_limit, tell)
        if gathered:
            reports.report(params, {key: np.stack([each[key] for each in gathered]) for key in gathered[0]})
        return hidden, tuple(last)


class RNNCell(RecurrentCell):
    """A tanh RNN's cell (eq. 4), for one time step or a sequence; the arguments are those of `RecurrentCell`."""

    cell, _step, _sequence = "rnn", staticmethod(ops.rnn_step), staticmethod(ops.rnn)


class LSTMCell(RecurrentCell):
    """An LSTM's cell (eq. 20-22), for one time step or a sequence; the arguments are those of `RecurrentCell`.

        >>> cell = nn.LSTMCell(8, 16, norm="layer")
        >>> params, x = duoln.to_tensors(cell.init(0)), duoln.tensor(np.zeros((3, 8), np.float32))
        >>> h, c = cell(params, x)                   # from the first states
        >>> h, c = cell(params, x, (h, c))
    """

    cell, _step, _sequence = "lstm", staticmethod(ops.lstm_step), staticmethod(ops.lstm)


class GRUCell(RecurrentCell):
    """A GRU's cell (eq. 26-28), for one time step or a sequence; the arguments are those of `RecurrentCell`."""

    cell, _step, _sequence = "gru", staticmethod(ops.gru_step), staticmethod(ops.gru)


class Recurrent(Module):
    """Layers of one kind of cell over sequences.

    `layer(params, x)` returns the outputs of the last layer and the last states of every layer and direction,
    first to last, forward before backward. The arguments are those of `LSTM`, with the options of all cells.
    """

    cell_type: ClassVar[type[RecurrentCell]]

    def __init__(self, n_in: int, n_hidden: int, norm: Norm = "none", layers: int = 1, bidirectional: bool = False,
                 dropout: float = 0.0, return_sequences: bool = True, batch_first: bool = False,
                 **cell_options: Any) -> None:
        kind = type(self).__name__
        check_sizes(kind, n_in=n_in, n_hidden=n_hidden, layers=layers)
        check_number(kind, "dropout", dropout, BELOW_1)
        if dropout and layers == 1:
            raise UsageError(f"[{kind}] dropout: expected 0 for one layer, because it acts between layers, found "
                             f"{dropout}; nn.Dropout drops elsewhere")
        check_flag(kind, "bidirectional", bidirectional)
        check_flag(kind, "return_sequences", return_sequences)
        check_flag(kind, "batch_first", batch_first)
        for option in sorted(cell_options.keys() - set(_OPTIONS)):
            known = [*_OPTIONS, "layers", "bidirectional", "dropout", "batch_first"]
            advice = f"; in duoln: {OF_RECURRENT[option]}" if option in OF_RECURRENT else how_to_name(option, known)
            raise UsageError(f"[{kind}] expected options of {', '.join(_OPTIONS)}, found {option!r}{advice}")
        self.n_in, self.n_hidden, self.norm, self.layers = n_in, n_hidden, norm, layers
        self.bidirectional, self.dropout, self.return_sequences = bidirectional, dropout, return_sequences
        self.batch_first = batch_first
        self.directions = ("forward", "backward") if bidirectional else ("forward",)
        self.cells: dict[str, RecurrentCell] = {}
        self.dropouts = {f"dropout{k}": Dropout(dropout) for k in range(1, layers if dropout else 1)}
        for k in range(layers):
            width = n_in if k == 0 else len(self.directions) * n_hidden
            for direction in self.directions:
                self.cells[f"{direction}{k}"] = self.cell_type(width, n_hidden, norm, name=kind, **cell_options)

    def children(self) -> dict[str, Module]:
        return {**self.cells, **self.dropouts}

    def _parts(self) -> dict[str, Module]:
        return {}  # the settings of the layer already describe its cells

    def first_states(self, params: Params, batch: int) -> list[States]:
        """The states of a batch before its first time step: zeros, or the learned states, as `states=` takes them."""
        return [cell.first_states(branch(type(self).__name__, params, name), batch)
                for name, cell in self.cells.items()]

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
        advice = "; a mask goes by mask=" if isinstance(states, Tensor) else ""
        raise ShapeError(f"[{type(self).__name__}] states: expected [{', '.join([form] * min(count, 2))}"
                         f"{', ...' if count > 2 else ''}], {form} for each layer and direction, {count} in all, found "
                         f"{_described_states(states)}{advice}")


def _described_states(given: Any) -> str:
    if not isinstance(given, tuple | list):
        return described(given)
    tensors = " tensors" if given and all(isinstance(each, Tensor) for each in given) else ""
    return f"a {type(given).__name__} of {len(given)}{tensors}"


class RNN(Recurrent):
    """tanh RNN layers over sequences (eq. 4 of the paper with `norm="layer"`).

    Args:
        n_in: size of the input.
        n_hidden: size of the state.
        norm: "none", "layer", "layer-theano", "layer-per-gate" or "batch", see `duoln help recurrent`.
        layers: the number of layers; each one takes the outputs of the one before.
        bidirectional: run each layer in both directions; outputs are (..., 2 n_hidden), forward first.
        dropout: the share of values dropped between layers, by the masks of `nn.DropoutMasks`.
        return_sequences: return the outputs of all time steps (T, B, ...), or of the last one (B, ...).
        batch_first: x, the mask and the outputs of all time steps are (B, T, ...).
        **cell_options: `learned_state`, `eps`, `eps_place`, `gain`, `gradient_limit`, `input_init` and
            `recurrent_init`, see `RecurrentCell`.

    Shape:
        x (T, B, n_in), mask bool (T, B) or None -> (T, B, directions * n_hidden), and for each layer and direction the
        last states (h,), each (B, n_hidden).
    """

    cell_type = RNNCell


class LSTM(Recurrent):
    """LSTM layers over sequences (eq. 20-22 of the paper with `norm="layer"`).

        >>> layer = nn.LSTM(8, 16, norm="layer", layers=2)
        >>> params = duoln.to_tensors(layer.init(0))
        >>> x = duoln.tensor(np.zeros((5, 3, 8), np.float32))      # time, batch, in
        >>> mask = duoln.tensor(np.arange(5)[:, None] < np.array([5, 2, 4]))
        >>> outputs, states = layer(params, x, mask=mask)
        >>> outputs.shape, [(h.shape, c.shape) for h, c in states]
        ((5, 3, 16), [((3, 16), (3, 16)), ((3, 16), (3, 16))])

    Args:
        n_in: size of the input.
        n_hidden: size of the state.
        norm: "none" is the plain LSTM; "layer" is the paper's, "layer-cell" its eq. 29-31; "layer-theano",
            "layer-per-gate" and "batch" are those of published code, see `duoln help recurrent`.
        layers: the number of layers; each one takes the outputs of the one before.
        bidirectional: run each layer in both directions; outputs are (..., 2 n_hidden), forward first.
        dropout: the share of values dropped between layers, by the masks of `nn.DropoutMasks`.
        return_sequences: return the outputs of all time steps (T, B, ...), or of the last one (B, ...).
        batch_first: x, the mask and the outputs of all time steps are (B, T, ...).
        **cell_options: `forget_bias`, `learned_state`, `eps`, `eps_place`, `gain`, `remat`, `gradient_limit`,
            `input_init` and `recurrent_init`, see `RecurrentCell`.

    Shape:
        x (T, B, n_in), mask bool (T, B) or None -> (T, B, directions * n_hidden), and for each layer and direction the
        last states (h, c), each (B, n_hidden).
    """

    cell_type = LSTMCell


class GRU(Recurrent):
    """GRU layers over sequences (eq. 26-28 of the paper with `norm="layer"`).

        >>> layer = nn.GRU(8, 16, norm="layer", bidirectional=True)
        >>> outputs, states = layer(duoln.to_tensors(layer.init(0)), duoln.tensor(np.zeros((5, 3, 8), np.float32)))
        >>> outputs.shape, len(states)
        ((5, 3, 32), 2)

    Args:
        n_in: size of the input.
        n_hidden: size of the state.
        norm: "none", "recurrent-bias" (PyTorch's GRU), "layer", "layer-theano", "layer-per-gate" or "batch", see
            `duoln help recurrent`.
        layers: the number of layers; each one takes the outputs of the one before.
        bidirectional: run each layer in both directions; outputs are (..., 2 n_hidden), forward first.
        dropout: the share of values dropped between layers, by the masks of `nn.DropoutMasks`.
        return_sequences: return the outputs of all time steps (T, B, ...), or of the last one (B, ...).
        batch_first: x, the mask and the outputs of all time steps are (B, T, ...).
        **cell_options: `update_gate`, `learned_state`, `eps`, `eps_place`, `gain`, `gradient_limit`, `input_init`
            and `recurrent_init`, see `RecurrentCell`.

    Shape:
        x (T, B, n_in), mask bool (T, B) or None -> (T, B, directions * n_hidden), and for each layer and direction the
        last states (h,), each (B, n_hidden).
    """

    cell_type = GRUCell
