"""Recurrent cells in float64 whose values are rounded where CUDA's rules store them in 16 bits: the reference of these rules.

The equations are those of the composed rule, which `tests/ops` proves. Rounded are x_proj and h_proj (of an RNN their sum),
hidden states where a product or the caller reads them, and the gradients of x_proj and h_proj. An LSTM's cell, a GRU's
state and the gradients of states are not.
"""

import numpy as np

from duoln import ops, runtime
from duoln.core import Op, Rule, Tensor
from duoln.ops.recurrent import formulas
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.sequences import norms_by_name

NUMPY = runtime.backend("numpy")


def rounded(x, dtype):
    """Values of float64 rounded to a dtype of 16 bits."""
    return NUMPY.to_numpy(NUMPY.asarray(x, dtype)).astype(np.float64)


def _rounding(dtype, both):
    """An operator that rounds values, and their gradients too if it is for `both`."""
    made = Op(lambda x: made.apply(x), name="rounding")
    made.add(Rule("composed", lambda be, x: (rounded(x, dtype), None), lambda be, saved, gout, needs: (rounded(gout, dtype) if both else gout,)))
    return made


def sequence(cell, arrays, dtype, *, norm, eps, reverse, gradient_limit, **unused):
    """The operator's outputs, from its arrays in its order: tensors of float64, those that are stored rounded before."""
    is_lstm, kept, stored = cell == "lstm", _rounding(dtype, False), _rounding(dtype, True)
    x, *states, w_x, w_h, bias, mask = arrays[:7 if is_lstm else 6]
    norms, s = norms_by_name(cell, norm, tuple(arrays[7 if is_lstm else 6:])), Settings(norm, eps)
    if mask is not None:
        x = ops.where(ops.expand_dims(mask, axis=2), x, 0.0)
    in_product = bias is not None and (cell != "lstm" or norm == "layer-theano")
    x_proj = ops.linear(x, w_x) + bias if in_product else ops.linear(x, w_x)
    if cell == "rnn":
        x_gates = kept(x_proj)
    else:
        x_gates = formulas.input_to_gates(cell, stored(x_proj) - bias if in_product else stored(x_proj), bias, norms, s)
    if cell != "gru":
        states[0] = kept(states[0])
    hidden = {}
    times = range(x.shape[0])
    for t in times[::-1] if reverse else times:
        seen = states if gradient_limit is None else [ops.clip_gradient(a, limit=gradient_limit) for a in states]
        h_proj = ops.matmul(kept(seen[0]), w_h)
        if cell == "rnn":
            new = formulas.next_states(cell, stored(x_gates[t] + h_proj), ops.zeros_like(h_proj), tuple(seen), bias, norms, s)
        else:
            new = formulas.next_states(cell, x_gates[t], stored(h_proj), tuple(seen), bias, norms, s)
        if cell != "gru":
            new = (kept(new[0]), *new[1:])
        real = None if mask is None else ops.expand_dims(mask[t], axis=1)
        states = list(new) if real is None else [ops.where(real, a, b) for a, b in zip(new, states, strict=True)]
        hidden[t] = kept(states[0])
    return ops.stack(*(hidden[t] for t in sorted(hidden))), *states


def cell(arrays, dtype, *, norm, eps, **unused):
    """`lstm_cell` in the same way."""
    x_proj, h_proj, c, bias, *norm_arrays = arrays
    norms, s = norms_by_name("lstm", norm, tuple(norm_arrays)), Settings(norm, eps)
    if norm == "layer-theano":
        x_proj = _rounding(dtype, True)(x_proj + bias) - bias
    x_gates = formulas.input_to_gates("lstm", _rounding(dtype, True)(x_proj) if norm != "layer-theano" else x_proj, bias, norms, s)
    h, c = formulas.lstm_cell(x_gates, _rounding(dtype, True)(h_proj), c, bias, norms, s)
    return _rounding(dtype, False)(h), c


def arrays_of(case, dtype, stored):
    """The arrays of a case in float64, rounded where a rule takes them in 16 bits."""
    return [a if a is None or a.dtype.kind != "f" else rounded(a, dtype) if k in stored else a.astype(np.float64) for k, a in enumerate(case.inputs)]


def as_tensors(arrays):
    """Tensors on NumPy; None stays None."""
    return [None if a is None else Tensor(NUMPY.asarray(a), NUMPY) for a in arrays]
