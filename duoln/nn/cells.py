"""The cells of recurrent layers, for a time step, as models with feedback call them, and for a sequence (T, B, in)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from duoln import ops
from duoln.core import Tensor
from duoln.core.arguments import (
    ABOVE_0,
    AT_LEAST_0,
    check_choice,
    check_flag,
    check_function,
    check_number,
    described,
)
from duoln.core.pytorch_names import OF_RECURRENT, how_to_name
from duoln.core.spec import check_tensors
from duoln.core.tensor import constant_tensor
from duoln.errors import ShapeError, UsageError
from duoln.nn import init, observing, population
from duoln.nn.layers import check_sizes
from duoln.nn.module import NOT_GIVEN, Module, Params, parameter, parameters
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.sequences import check_cell, walk
from duoln.ops.recurrent.variants import CELLS, CellName, Norm, check_variant, has_bias, norm_shapes, state_dtype
from duoln.randomness import Stream

States = tuple[Tensor, ...]
UpdateGate = Literal["renews", "keeps"]
Bias = Literal["one", "pytorch"]
OPTIONS = ("learned_state", "bias", "forget_bias", "eps", "gain", "update_gate", "gradient_limit",
           "input_init", "recurrent_init")
"""The arguments that a layer passes to its cells."""
_OF_ONE_CELL = {"forget_bias": "lstm", "update_gate": "gru"}
_TWO_BIASES = "bias_ih", "bias_hh"
"""The names that PyTorch gives its two biases; `bias_x` and `bias_h` are those of norms."""


_STREAMS = {"rnn": (0,), "lstm": (1, 0, 3, 2), "gru": (0, 1, 2)}
"""The number in the name of the stream that draws each gate's weights: an LSTM's gates are numbered as in eq. 20."""


def reject_unknown_options(init: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """A constructor that takes these parameters only, and raises UsageError for another one."""
    own = inspect.Signature(list(parameters))
    options = ", ".join(name for name, each in own.parameters.items() if each.kind is each.KEYWORD_ONLY)

    @wraps(init)
    def made(self: Module, *args: Any, **given: Any) -> None:
        for name in sorted(given.keys() - own.parameters.keys()):
            advice = f"; in duoln: {OF_RECURRENT[name]}" if name in OF_RECURRENT else how_to_name(name, own.parameters)
            raise UsageError(f"[{type(self).__name__}] expected options of {options}, found {name!r}{advice}")
        init(self, *args, **given)

    made.__signature__ = own  # type: ignore[attr-defined]
    return made


class RecurrentCell(Module):
    """One cell: `cell(params, x, states)` computes one time step, `cell.sequence(...)` computes a sequence.

    Initially the recurrent weights of each gate are orthogonal, input weights are uniform in +-0.1, biases are 0, and
    gains are 1, or 0.1 for batch norm (Cooijmans et al. 2017). With `bias="pytorch"` weights and biases are uniform in
    +-1 / sqrt(n_hidden), as in PyTorch.

    Args:
        n_in: size of the input.
        n_hidden: size of the state.
        norm: a variant of `ops.recurrent.NORMS`; "layer" is the paper's.
        learned_state: whether the first state is a parameter, initially 0.
        bias: "one" is the bias that the norm has, if it has one. "pytorch" are the two of PyTorch, bias_ih and bias_hh:
            only their sum matters, but Adam moves each as far as it would move one, and both count for a global norm.
            A GRU without norms is then PyTorch's, "recurrent-bias", whose bias_hh of n the reset gate multiplies.
        forget_bias: the initial bias of an LSTM's forget gate; the paper has none.
        gradient_limit: a bound on the gradients of the states between the time steps of a sequence, see `ops.lstm`;
            a single time step has none.
        eps: as in `ops.layer_norm`.
        gain: the initial gain of the norms. The bias of "recurrent-bias" starts at 0.
        update_gate: what a GRU's update gate of 1 does to the state. It "renews" it in eq. 25-28 of the paper,
            h = (1 - z) h + z h'; it "keeps" it in the published code of the paper's authors, h = z h + (1 - z) h'. One
            is the other with all weights of that gate negated. Norms over both gates together allow this if their gains
            start at -`gain` in that gate, and so "keeps" starts them. Without norms nothing differs: weights are
            drawn symmetrically around 0.
        input_init, recurrent_init: the initialisers of each gate's weights, in place of those above.
        name: the first word of errors; by default the class.

    Raises:
        UsageError: the variant is unknown. ShapeError: a size is below 1.
    """

    cell: ClassVar[CellName]
    _step: ClassVar[Callable[..., Any]]
    _sequence: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "cell" in vars(cls):
            whole = inspect.signature(cls.__init__).parameters.values()
            own = [each for each in whole if _OF_ONE_CELL.get(each.name, cls.cell) == cls.cell]
            cls.__init__ = reject_unknown_options(cls.__init__, own)  # type: ignore[method-assign]

    def __init__(self, n_in: int, n_hidden: int, *, norm: Norm = "none", learned_state: bool = False,
                 bias: Bias = "one", forget_bias: float = 0.0, eps: float = 1e-5, gain: float | None = None,
                 update_gate: UpdateGate = "renews", gradient_limit: float | None = None,
                 input_init: init.Initializer | None = None, recurrent_init: init.Initializer | None = None,
                 name: str | None = None) -> None:
        self._name = name or type(self).__name__
        check_sizes(self._name, n_in=n_in, n_hidden=n_hidden)
        check_variant(self.cell, norm, self._name)
        if isinstance(bias, bool):
            raise UsageError(f"[{self._name}] bias: expected 'one' or 'pytorch', found {bias}; {OF_RECURRENT['bias']}")
        self.bias = check_choice(self._name, "bias", bias, get_args(Bias))
        if bias == "pytorch" and (self.cell, norm) == ("gru", "none"):
            norm = "recurrent-bias"
        self.forget_bias = check_number(self._name, "forget_bias", forget_bias)
        self.eps = check_number(self._name, "eps", eps, AT_LEAST_0)
        check_number(self._name, "gain", 1.0 if gain is None else gain)
        self.update_gate = check_choice(self._name, "update_gate", update_gate, get_args(UpdateGate))
        self.learned_state = check_flag(self._name, "learned_state", learned_state)
        check_number(self._name, "gradient_limit", 1.0 if gradient_limit is None else gradient_limit, ABOVE_0)
        check_function(self._name, "input_init", init.zeros if input_init is None else input_init)
        check_function(self._name, "recurrent_init", init.zeros if recurrent_init is None else recurrent_init)
        if bias == "pytorch" and (forget_bias or not has_bias(self.cell, norm)):
            why = f"a forget_bias of {forget_bias}" if forget_bias else f"norm '{norm}', which has no bias of its own"
            raise UsageError(f"[{self._name}] bias: expected 'one' for {why}, found 'pytorch'")
        if forget_bias and not has_bias(self.cell, norm):
            raise UsageError(f"[{self._name}] norm '{norm}' has no bias of a forget gate to start at {forget_bias}")
        self.n_in, self.n_hidden, self.norm, self.gain, self.gradient_limit = n_in, n_hidden, norm, gain, gradient_limit
        self._uniform = init.uniform(n_hidden ** -0.5)
        starts = (self._uniform, self._uniform) if bias == "pytorch" else (init.UNIFORM, init.ORTHOGONAL)
        self.input_init, self.recurrent_init = input_init or starts[0], recurrent_init or starts[1]
        self.norm_names = tuple(name for name in norm_shapes(self.cell, norm, n_hidden)
                                if bias == "one" or name != "bias_n")
        self.gathers = norm == "batch"

    @property
    def state_names(self) -> tuple[str, ...]:
        return CELLS[self.cell].states

    @property
    def state_form(self) -> str:
        """The tuple of states, as it is written."""
        return "(h, c)" if len(self.state_names) == 2 else "(h,)"

    def weights(self, rng: Stream) -> Params:
        def by_gate(name: str, start: init.Initializer, rows: int) -> np.ndarray:
            return np.concatenate([start(rng.child(f"{name}.{k}"), (rows, self.n_hidden))
                                   for k in _STREAMS[self.cell]], axis=1)

        params: Params = {"w_x": by_gate("w_x", self.input_init, self.n_in),
                          "w_h": by_gate("w_h", self.recurrent_init, self.n_hidden)}
        if self.bias == "pytorch":
            wide = CELLS[self.cell].gates * self.n_hidden
            params |= {name: self._uniform(rng.child(name), (wide,)) for name in _TWO_BIASES}
        elif has_bias(self.cell, self.norm):
            params["bias"] = np.zeros(CELLS[self.cell].gates * self.n_hidden, np.float32)
            params["bias"][self.n_hidden:2 * self.n_hidden] = self.forget_bias  # the forget gate comes second
        gain = self.gain if self.gain is not None else (0.1 if self.norm == "batch" else 1.0)
        shapes = norm_shapes(self.cell, self.norm, self.n_hidden)
        for name in self.norm_names:
            start = {"gain": gain, "alpha": 0.5}.get(name.partition("_")[0], 0.0)
            params[name] = np.full(shapes[name], start, np.float32)
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
        stored = like.dtype
        dtypes = [state_dtype(self.cell, name, stored) for name in CELLS[self.cell].states]
        if self.learned_state:
            learned = parameters(self._name, params, [f"{name}0" for name in self.state_names])
            return tuple(ops.broadcast_to(state.astype(dtype), shape=shape)
                         for state, dtype in zip(learned, dtypes, strict=True))
        first = constant_tensor(like.backend.zeros(shape, dtypes[0]), like.backend)
        alike = dtypes[0] == dtypes[-1]
        last = first if alike else constant_tensor(like.backend.zeros(shape, dtypes[-1]), like.backend)
        return (first, last)[:len(dtypes)]

    def _states(self, params: Params, x: Tensor, axes: tuple[str, ...], given: States | None) -> States:
        """The states that were given, or the first ones, after a check of `x`, which has these axes."""
        check_tensors(self._name, x)
        if x.ndim != len(axes):
            raise ShapeError(f"[{self._name}] expected x ({', '.join(axes)}), found shape {x.shape}")
        if x.shape[-1] != self.n_in:
            raise ShapeError(f"[{self._name}] expected x with a last axis of {self.n_in}, found shape {x.shape}")
        if given is None:
            return self.first_states(params, x.shape[-2])
        count = len(self.state_names)
        if not isinstance(given, tuple | list) or len(given) != count:
            raise ShapeError(f"[{self._name}] states: expected {self.state_form}, found {described_states(given)}")
        return tuple(given)

    def _arrays(self, params: Params) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Tensor]]:
        w_x, w_h, *arrays = parameters(self._name, params, ("w_x", "w_h", *self.norm_names))
        norms: dict[str, Tensor] = dict(zip(self.norm_names, arrays, strict=True))
        if self.bias == "one":
            return w_x, w_h, params.get("bias"), norms
        of_x, of_h = parameters(self._name, params, _TWO_BIASES)
        if of_x.shape != of_h.shape:
            raise ShapeError(f"[{self._name}] bias_hh: expected shape {of_x.shape} as bias_ih, found {of_h.shape}")
        if self.norm != "recurrent-bias":
            return w_x, w_h, of_x + of_h, norms
        n = 2 * self.n_hidden  # where a GRU's n begins
        return w_x, w_h, ops.concat(of_x[:n] + of_h[:n], of_x[n:]), {"bias_n": of_h[n:]}

    def __call__(self, params: Params, x: Tensor = NOT_GIVEN, states: States | None = None) -> States:
        """One time step: x (B, n_in) and the states (B, n_hidden), or None for the first -> the next states."""
        if x is NOT_GIVEN:
            parameter(self._name, params, "w_x")
        states = self._states(params, x, ("batch", "in"), states)
        w_x, w_h, bias, norms = self._arrays(params)
        if self._has_population(params):
            raise UsageError(f"[{self._name}] expected a sequence, because each of its time steps has a population's "
                             "statistics of its own, found one time step; call cell.sequence(params, x)")
        new = self._step(x, *states, w_x, w_h, bias, norms, norm=self.norm, eps=self.eps)
        return new if isinstance(new, tuple) else (new,)

    def sequence(self, params: Params, x: Tensor, states: States | None = None, mask: Tensor | None = None,
                 reverse: bool = False) -> tuple[Tensor, States]:
        """A sequence: x (T, B, n_in) -> hidden states (T, B, n_hidden) and the last states."""
        states = self._states(params, x, ("time", "batch", "in"), states)
        w_x, w_h, bias, norms = self._arrays(params)
        if self._has_population(params):
            return self._by_population(params, x, states, mask, reverse)
        hidden, *last = self._sequence(x, *states, w_x, w_h, bias, mask, norms, norm=self.norm, eps=self.eps,
                                       reverse=reverse, gradient_limit=self.gradient_limit)
        return hidden, tuple(last)

    def _has_population(self, params: Params) -> bool:
        """True if the parameters have statistics of a population, or these are gathered now."""
        return self.norm == "batch" and (observing.must_report(params) or "mean_x" in params)

    def _by_population(self, params: Params, x: Tensor, states: States, mask: Tensor | None,
                       reverse: bool) -> tuple[Tensor, States]:
        """A sequence by the statistics of a population; or by those of its batch, which are gathered."""
        w_x, w_h, bias, norms = self._arrays(params)
        check_cell(self.cell, self.norm, x, states, w_x, w_h, bias, norms, mask)
        gathers = observing.must_report(params)
        if mask is not None and not gathers:
            x = ops.where(ops.expand_dims(mask, axis=2), x, 0.0)

        def run(norms_at: Callable[[int], Any], tell: Callable[..., None] | None = None) -> States:
            return walk(self.cell, x, states, w_x, w_h, bias, mask, norms_at,
                        Settings(self.norm, self.eps), reverse, self.gradient_limit, tell)

        if gathers:
            (hidden, *last), statistics = population.gather_statistics(run, norms, mask, reverse)
            if statistics:
                observing.report(params, statistics)
        else:
            keys = [f"{kind}_{name}" for name in population.normalised(norms) for kind in ("mean", "variance")]
            given = dict(zip(keys, parameters(self._name, params, keys), strict=True))
            hidden, *last = run(population.norms_by(given, norms, mask, reverse))
        return hidden, tuple(last)


def described_states(given: Any) -> str:
    """A description of given states, for an error."""
    if not isinstance(given, tuple | list):
        return described(given)
    tensors = " tensors" if given and all(isinstance(each, Tensor) for each in given) else ""
    return f"a {type(given).__name__} of {len(given)}{tensors}"


class RNNCell(RecurrentCell):
    """A tanh RNN's cell (eq. 4), for one time step or a sequence; the arguments are those of `RecurrentCell`."""

    cell, _step, _sequence = "rnn", staticmethod(ops.rnn_step), staticmethod(ops.rnn)


class LSTMCell(RecurrentCell):
    """An LSTM's cell (eq. 20-22), for one time step or a sequence; the arguments are those of `RecurrentCell`.

        >>> cell = nn.LSTMCell(8, 16, norm="layer")
        >>> params, x = duoln.init(cell, 0), duoln.tensor(np.zeros((3, 8), np.float32))
        >>> h, c = cell(params, x)                   # from the first states
        >>> h, c = cell(params, x, (h, c))
    """

    cell, _step, _sequence = "lstm", staticmethod(ops.lstm_step), staticmethod(ops.lstm)


class GRUCell(RecurrentCell):
    """A GRU's cell (eq. 26-28), for one time step or a sequence; the arguments are those of `RecurrentCell`."""

    cell, _step, _sequence = "gru", staticmethod(ops.gru_step), staticmethod(ops.gru)
