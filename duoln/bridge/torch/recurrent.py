"""LSTM, GRU and RNN as modules of PyTorch: torch.nn's arguments, parameters and states, and the norms of duoln."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from duoln import tree
from duoln.bridge.functions import NORMS, check_norm
from duoln.bridge.torch.layers import Layer, call
from duoln.bridge.torch.steps import Steps
from duoln.core.arguments import AT_LEAST_0, check_choice, check_flag, check_integer, check_number, described
from duoln.core.pytorch_names import hinted
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.ops.recurrent.variants import CELLS, has_bias, norm_shapes

Bias = bool | Literal["one"]


class _Part(NamedTuple):
    """The names of the parameters of one layer in one direction."""

    weights: tuple[str, str]
    biases: tuple[str, ...]
    norms: tuple[tuple[str, str], ...]
    """The module and the name in it, in the order of duoln's operators."""
    keys: tuple[str, str]
    """The keys of the computation without a mask and with one; see `layers`."""


class _Recurrent(Layer, torch.nn.Module):
    """Layers of one kind of cell, whose weights (gates * hidden, in) lie in memory as those of torch.nn."""

    cell: ClassVar[Any]
    states: ClassVar[int]

    @hinted
    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: Bias = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
                 device: Any = None, dtype: Any = None, *, norm: str = "none", eps: float = 1e-5,
                 init: Literal["pytorch", "paper"] = "pytorch") -> None:
        super().__init__()
        name = type(self).__name__
        self.input_size = check_integer(name, "input_size", input_size, 1)
        self.hidden_size = check_integer(name, "hidden_size", hidden_size, 1)
        self.num_layers = check_integer(name, "num_layers", num_layers, 1)
        self.batch_first = check_flag(name, "batch_first", batch_first)
        self.bidirectional = check_flag(name, "bidirectional", bidirectional)
        self.dropout = check_number(name, "dropout", dropout, AT_LEAST_0)
        self.eps = check_number(name, "eps", eps, AT_LEAST_0)
        self.bias, self.proj_size = bias, proj_size
        check_norm(name, self.cell, norm)
        if proj_size:
            raise UsageError(f"[{name}] proj_size: expected 0, because duoln has no projection of the state, found "
                             f"{proj_size}")
        if bias not in (True, False, "one"):
            raise UsageError(f"[{name}] bias: expected True (two, as torch.nn has), 'one' or False, found {bias!r}")
        if dropout > 1:
            raise UsageError(f"[{name}] dropout: expected a probability, found {dropout}")
        if dropout and num_layers == 1:
            warnings.warn(f"[{name}] dropout is between layers, and there is one layer", stacklevel=2)
        self.norm = norm
        self.init = check_choice(name, "init", init, ("pytorch", "paper"))
        self._steps = Steps()
        self._add_parameters({"device": device, "dtype": dtype})
        self.reset_parameters()

    def _add_parameters(self, options: dict[str, Any]) -> None:
        wide = CELLS[self.cell].gates * self.hidden_size
        self._parts: list[list[_Part]] = []
        for layer in range(self.num_layers):
            n_in = self.input_size if layer == 0 else self.hidden_size * self._directions
            parts = [self._part(f"_l{layer}{direction}") for direction in ("", "_reverse")[:self._directions]]
            self._parts.append(parts)
            for part in parts:
                for name, rows in zip(part.weights, (n_in, self.hidden_size), strict=True):
                    self.register_parameter(name, torch.nn.Parameter(torch.empty(wide, rows, **options)))
                for name in part.biases:
                    self.register_parameter(name, torch.nn.Parameter(torch.empty(wide, **options)))
                for name in dict.fromkeys(name for name, _ in part.norms):
                    width = self.hidden_size if name.startswith("layernorm_c") else wide
                    self.add_module(name, torch.nn.LayerNorm(width, self.eps, **options))

    def _part(self, ending: str) -> _Part:
        biases = (f"bias_ih{ending}", f"bias_hh{ending}") if has_bias(self.cell, self.norm) else ()
        norms = [NORMS[name] for name in norm_shapes(self.cell, self.norm, self.hidden_size)]
        norm = "recurrent-bias" if self._has_recurrent_bias else self.norm
        keys = [json.dumps([self.cell, {"norm": norm, "eps": self.eps, "reverse": ending.endswith("reverse"),
                                        "bias": has_bias(self.cell, norm), "mask": mask}]) for mask in (False, True)]
        return _Part((f"weight_ih{ending}", f"weight_hh{ending}"),
                     biases[:{True: 2, "one": 1, False: 0}[self.bias]],
                     tuple((module + ending, name) for module, name in norms),
                     (keys[0], keys[1]))

    @property
    def _has_recurrent_bias(self) -> bool:
        """True if the reset gate of this GRU multiplies a bias too, as torch.nn.GRU's does."""
        return self.cell == "gru" and self.norm == "none" and self.bias is True

    @property
    def _dtype(self) -> torch.dtype:
        """The weights' dtype. A weight that is computed from others is not computed for it."""
        weight = self._parameters.get("weight_hh_l0")
        if weight is None:
            weight = next(self.parameters(), None)
        return (self.weight_hh_l0 if weight is None else weight).dtype

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights: as torch.nn does, uniform in +-1/sqrt(hidden); or as the paper, orthogonal for each gate.

        With `init="paper"` the input's weights are uniform in +-0.1 and the biases 0. Gains are 1, the norms' biases 0.
        """
        for name, p in self.named_parameters(recurse=False):
            if self.init == "pytorch":
                p.uniform_(-1 / math.sqrt(self.hidden_size), 1 / math.sqrt(self.hidden_size))
            elif name.startswith("weight_hh"):
                for gate in p.chunk(CELLS[self.cell].gates):
                    torch.nn.init.orthogonal_(gate)
            elif name.startswith("weight_ih"):
                p.uniform_(-0.1, 0.1)
            else:
                p.zero_()
        for norm in self.children():
            norm.reset_parameters()  # type: ignore[operator]

    def flatten_parameters(self) -> None:
        """Does nothing: there is no order in which the weights have to lie. Programs call it for torch.nn's layers."""

    @property
    def all_weights(self) -> list[list[torch.Tensor]]:
        """The weights and biases of each layer and direction."""
        parts = [part for parts in self._parts for part in parts]
        return [[getattr(self, name) for name in (*part.weights, *part.biases)] for part in parts]

    def extra_repr(self) -> str:
        """The arguments that are not the default."""
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False,
                    "norm": "none", "init": "pytorch"}
        others = [f"{key}={value!r}" for key in defaults if (value := getattr(self, key)) != defaults[key]]
        return ", ".join([str(self.input_size), str(self.hidden_size), *others])

    def forward(self, input: torch.Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """A sequence, padded, packed or of one example, and the first states, which are 0 by default.

        Shape:
            input (T, B, in), with `batch_first` (B, T, in), for one example (T, in), or a PackedSequence;
            hx (layers * directions, B, hidden), of an LSTM a pair -> outputs (T, B, directions * hidden) in the form of
            the input, and the last states like hx.

        Raises:
            ShapeError: an array has another shape.
        """
        if isinstance(input, PackedSequence):
            self._check_dtype(input.data)
            return self._of_packed(input, hx)
        self._check_dtype(input)
        if input.dim() not in (2, 3):
            raise ShapeError(f"[{type(self).__name__}] expected input of 2 or 3 axes, found shape {tuple(input.shape)}")
        alone, axis = input.dim() == 2, 0 if self.batch_first and input.dim() == 3 else 1
        x = input.unsqueeze(1) if alone else input.transpose(0, 1) if axis == 0 else input
        states = self._first_states(x, tree.map(lambda s: s.unsqueeze(1) if isinstance(s, torch.Tensor) else s, hx)
                             if alone and hx is not None else hx)
        x, states = self._walk(x, states, None)
        if alone:
            x, states = x.squeeze(1), tuple(s.squeeze(1) for s in states)
        return x.transpose(0, 1) if axis == 0 else x, states if self.states == 2 else states[0]

    def _check_dtype(self, x: Any) -> None:
        name, dtype = type(self).__name__, self._dtype
        if not isinstance(x, torch.Tensor):
            raise DtypeError(f"[{name}] expected a torch.Tensor or a PackedSequence, found {described(x)}")
        if x.dtype is not dtype and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
            raise DtypeError(f"[{name}] expected input of {dtype}, as the weights are, found {x.dtype}; write "
                             f"x.to({dtype})")

    def _of_packed(self, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        x, lengths = pad_packed_sequence(packed)
        mask = torch.arange(len(x)).unsqueeze(1) < lengths
        x, states = self._walk(x, self._first_states(x, hx), mask.to(x.device))
        if packed.sorted_indices is not None:
            x, lengths = x.index_select(1, packed.sorted_indices), lengths[packed.sorted_indices.cpu()]
        data = pack_padded_sequence(x, lengths).data
        return packed._replace(data=data), states if self.states == 2 else states[0]

    def _first_states(self, x: torch.Tensor, hx: Any) -> tuple[torch.Tensor, ...]:
        """The states before the first time step."""
        name, shape = type(self).__name__, (self.num_layers * self._directions, x.shape[1], self.hidden_size)
        if x.shape[-1] != self.input_size:
            raise ShapeError(f"[{name}] expected input with a last axis of {self.input_size}, found {x.shape[-1]}")
        if hx is None:
            return (x.new_zeros(shape, dtype=self._dtype),) * self.states
        states = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
        if len(states) != self.states or any(not isinstance(s, torch.Tensor) or s.shape != shape for s in states):
            form = "a pair (h, c) of shape" if self.states == 2 else "a tensor of shape"
            shapes = ", ".join(str(tuple(s.shape)) if isinstance(s, torch.Tensor) else described(s) for s in states)
            raise ShapeError(f"[{name}] hx: expected {form} {shape}, found {shapes}; a sequence without a batch has "
                             "states without one")
        return states

    def _walk(self, x: torch.Tensor, first: Sequence[torch.Tensor], mask: torch.Tensor | None,
              ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """All layers and directions, in the order of PyTorch's states."""
        if not torch.compiler.is_compiling() and len(x) == 1 and mask is None and not (self.dropout and self.training):
            stepped = self._steps.run(self, x, first)
            if stepped is not None:
                return stepped
        last: list[tuple[torch.Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = torch.nn.functional.dropout(x, self.dropout, self.training)
            outputs = []
            for part in self._parts[layer]:
                arrays, norms = self._arrays(part)
                h, *states = call(part.keys[mask is not None], [
                    x, *(s[len(last)] for s in first), *arrays, *([] if mask is None else [mask]), *norms])
                outputs.append(h)
                last.append(tuple(states))
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        return x, tuple(states[0].unsqueeze(0) if len(states) == 1 else torch.stack(states)
                        for states in zip(*last, strict=True))

    def _arrays(self, part: _Part) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The weights and the bias of duoln's cell, and the parameters of its norms; each is read once."""
        w_x, w_h = (self._weight(getattr(self, name)).t() for name in part.weights)
        biases = [getattr(self, name) for name in part.biases]
        bias, norms = self._vectors(biases, [getattr(getattr(self, module), name) for module, name in part.norms])
        if has_bias(self.cell, self.norm):
            return [w_x, w_h, w_x.new_zeros(w_x.shape[1]) if bias is None else bias], norms
        return [w_x, w_h], norms

    def _vectors(self, biases: list[torch.Tensor], norms: list[torch.Tensor],
                 ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """The bias of duoln's cell, and the parameters of its norms."""
        return (sum(biases[1:], biases[0]) if biases else None), norms

    def _weight(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight (gates * hidden, in) with the gates of duoln's cell."""
        return weight


class LSTM(_Recurrent):
    """`torch.nn.LSTM` with layer norm, on duoln's kernels (Ba, Kiros, Hinton 2016, eq. 20-22).

    With `norm="none"` it computes what torch.nn.LSTM computes, from the same state_dict. `norm="layer"` is the paper's
    cell; "layer-cell", "layer-theano" and "layer-per-gate" are the others of `duoln.nn.LSTM`. The norms' parameters are
    `layernorm_i_l0.weight` (of what the input gives the gates), `layernorm_h_l0` and `layernorm_c_l0`, and their
    biases; `duoln.load_pytorch` reads a state_dict with these names.

    Args:
        input_size, hidden_size, num_layers, batch_first, dropout, bidirectional, device, dtype: as in torch.nn.LSTM.
        bias: True for the two biases of torch.nn.LSTM, with which Adam takes the same steps; "one" for one, or False.
        proj_size: 0.
        norm: the variant.
        eps: of the norms.
        init: "pytorch" or "paper", see `reset_parameters`.

    Raises:
        UsageError: an argument that duoln has not, such as `proj_size`.
    """

    cell, states = "lstm", 2


class GRU(_Recurrent):
    """`torch.nn.GRU` with layer norm, on duoln's kernels (Ba, Kiros, Hinton 2016, eq. 26-28).

    The arguments are those of `LSTM`; norms are "none", "layer", "layer-theano" and "layer-per-gate". The update gate
    keeps the state, as in PyTorch.
    """

    cell, states = "gru", 1

    def _vectors(self, biases: list[torch.Tensor], norms: list[torch.Tensor],
                 ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        if self._has_recurrent_bias:
            of_gates, of_n = biases[1].split((2 * self.hidden_size, self.hidden_size))
            return _to_duoln_gates(biases[0] + torch.nn.functional.pad(of_gates, (0, self.hidden_size)), True), [of_n]
        bias, norms = super()._vectors(biases, norms)
        normed = self.norm != "none"
        return None if bias is None else _to_duoln_gates(bias, not normed), [_to_duoln_gates(a, normed) for a in norms]

    def _weight(self, weight: torch.Tensor) -> torch.Tensor:
        return _to_duoln_gates(weight, self.norm == "none")


def _to_duoln_gates(x: torch.Tensor, turns: bool) -> torch.Tensor:
    """The gates r, z, n along the first axis in duoln's order z, r, n.

    duoln's update gate renews the state that PyTorch's keeps, so it changes its sign once: in the norm's parameters,
    or, without norms, in the weights and the bias (`turns`).
    """
    r, z, n = x.chunk(3)
    return torch.cat((-z if turns else z, r, n))


class RNN(_Recurrent):
    """`torch.nn.RNN` with tanh and layer norm, on duoln's kernels (Ba, Kiros, Hinton 2016, eq. 4).

    The arguments are those of `LSTM`, with `nonlinearity`, "tanh", after `num_layers`.
    """

    cell, states = "rnn", 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 *args: Any, **options: Any) -> None:
        if nonlinearity != "tanh":
            raise UsageError(f"[RNN] nonlinearity: expected 'tanh', which duoln has, found {nonlinearity!r}")
        super().__init__(input_size, hidden_size, num_layers, *args, **options)
