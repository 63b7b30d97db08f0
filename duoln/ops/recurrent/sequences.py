"""A recurrent network over a whole sequence, as one operator, and one time step of it.

Shape:
    x (T, B, in), states (B, H), w_x (in, gates * H), w_h (H, gates * H), bias (gates * H,), norms as
    `norm_shapes` says, mask bool (T, B) -> hidden states (T, B, H) and the last states. T may be 0.

Where the mask is False the row is masked: its state is copied and x counts as 0. So a padded sequence ends in the state
that it has without padding, and no gradient depends on the padding's values. `norm="batch"` is the exception: its
statistics are those of all rows. With `reverse` the sequence runs from its end; the outputs keep the order of the
inputs.

With `gradient_limit` each entry of the gradients of the states, as a time step hands them to the one before, is kept
within -limit .. limit (Graves 2013, section 2.1; see `clip_gradient`). A masked row hands them on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from duoln.core import Rule, Tensor, derived, op
from duoln.core.arguments import AT_LEAST_0, Above0, AtLeast0, check_number, described
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_beside, check_float
from duoln.errors import DtypeError, ShapeError
from duoln.ops.creation import zeros
from duoln.ops.elementwise import clip_gradient, stored_as, where, widened
from duoln.ops.linalg import linear, matmul
from duoln.ops.recurrent import formulas
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.variants import CELLS, check_variant, has_bias, norm_shapes
from duoln.ops.shape import expand_dims, stack, unstack

NormParameters = Mapping[str, Tensor]


def check_cell(name: str, norm: str, x: Tensor, states: tuple[Tensor, ...], w_x: Tensor, w_h: Tensor,
               bias: Tensor | None, norms: NormParameters | None, mask: Tensor | None = None) -> NormParameters:
    """The norms' parameters after the checks that all recurrent operators share.

    `name` is that of a cell, or of its step.

    Raises:
        UsageError: an unknown variant.
        ShapeError, DtypeError: arrays that do not fit; the message names the argument.
    """
    cell, norms = name.removesuffix("_step"), check_norms(name, norms)
    time = name == cell
    check_variant(cell, norm, name)
    check_float(name, x, *states, w_x, w_h, *norms.values(), *([] if bias is None else [bias]))
    x_shape, (hidden, width) = x.data.shape, w_h.data.shape if w_h.ndim == 2 else (0, 0)
    if len(x_shape) != (3 if time else 2):
        raise ShapeError(f"[{name}] expected x ({'time, ' if time else ''}batch, in), found shape {x_shape}")
    if hidden == 0 or width != CELLS[cell].gates * hidden:
        raise ShapeError(f"[{name}] expected w_h (hidden, {CELLS[cell].gates} * hidden) with hidden of at least 1, "
                         f"found {w_h.shape}")
    shapes: dict[str, tuple[Tensor, tuple[int, ...]]] = {"w_x": (w_x, (x_shape[-1], width))}
    for k, state in enumerate(states):
        shapes[f"state {k}"] = state, (x_shape[-2], hidden)
    check_shapes(name, cell, norm, hidden, shapes, bias, norms)
    if mask is not None:
        check_beside(name, "mask", mask, "bool", x)
        if mask.shape != x_shape[:-1]:
            raise ShapeError(f"[{name}] mask: expected shape {x_shape[:-1]}, found {mask.shape}")
    return norms


def check_norms(name: str, norms: NormParameters | None) -> NormParameters:
    """The norms' parameters by name; none for None. Raises DtypeError for what is no mapping."""
    if norms is None:
        return {}
    if not isinstance(norms, Mapping):
        raise DtypeError(f"[{name}] norms: expected a dict of the norms' parameters, found {described(norms)}")
    return norms


def check_shapes(name: str, cell: str, norm: str, hidden: int, shapes: dict[str, tuple[Tensor, tuple[int, ...]]],
                 bias: Tensor | None, norms: NormParameters) -> None:
    """Check arrays against their shapes, and a variant's bias and norms against what it has.

    Raises:
        ShapeError: one does not fit; the message names it.
    """
    if (bias is not None) != has_bias(cell, norm):
        raise ShapeError(f"[{name}] norm '{norm}': expected {'a' if bias is None else 'no'} bias, "
                         f"found {'none' if bias is None else bias.shape}")
    expected = norm_shapes(cell, norm, hidden)
    if list(norms) != list(expected):
        raise ShapeError(f"[{name}] norm '{norm}': expected the norm parameters "
                         f"{', '.join(expected) or 'none'}, found {', '.join(map(str, norms)) or 'none'}")
    if bias is not None:
        shapes["bias"] = bias, (CELLS[cell].gates * hidden,)
    for key, shape in expected.items():
        shapes[key] = norms[key], shape
    for role, (tensor, wanted) in shapes.items():
        if tensor.data.shape != wanted:
            raise ShapeError(f"[{name}] {role}: expected shape {wanted}, found {tensor.shape}")


def _time_steps(cell: str, x: Tensor, w_x: Tensor, bias: Tensor | None, mask: Tensor | None, norms: NormParameters,
                s: Settings, reverse: bool) -> list[tuple[int, Tensor, Tensor | None]]:
    """Index, `x_gates` and mask of each time step, in the order of the walk."""
    x_gates = unstack(formulas.input_to_gates(cell, linear(x, w_x), bias, norms, s))
    masks = [None] * len(x_gates) if mask is None else [expand_dims(m, axis=1) for m in unstack(mask)]
    time_steps = list(zip(range(len(x_gates)), x_gates, masks, strict=True))
    return time_steps[::-1] if reverse else time_steps


def walk(cell: str, x: Tensor, states: tuple[Tensor, ...], w_x: Tensor, w_h: Tensor, bias: Tensor | None,
         mask: Tensor | None, norms_at: Callable[[int], NormParameters], s: Settings, reverse: bool,
         gradient_limit: float | None, tell: Callable[..., None] | None = None) -> tuple[Tensor, ...]:
    """The formula of a cell, one time step after another: what the operators return.

    `norms_at(k)` has the norms' parameters of the k-th time step of the walk. `tell(x_gates, h_proj, states)` gets the
    products of each time step and the states that the formula makes of them. All is computed in float32 where
    arrays are stored in 16 bits; the results are stored as `x` and the states are.
    """
    given = x, states
    x, w_x, w_h, *wide = (widened(a) for a in (x, w_x, w_h, *states))
    states = tuple(wide)
    hidden: dict[int, Tensor] = {}
    for k, (t, x_gates, real) in enumerate(_time_steps(cell, x, w_x, bias, mask, norms_at(0), s, reverse)):
        seen = states if gradient_limit is None else tuple(clip_gradient(a, limit=gradient_limit) for a in states)
        h_proj = matmul(seen[0], w_h)
        new = formulas.next_states(cell, x_gates, h_proj, seen, bias, norms_at(k), s)
        if tell is not None:
            tell(x_gates, h_proj, new)
        states = new if real is None else tuple(where(real, a, b) for a, b in zip(new, states, strict=True))
        hidden[t] = states[0]
    h = states[0]
    whole = stack(*(hidden[t] for t in sorted(hidden))) if hidden else zeros((0, *h.shape), h.backend, h.dtype)
    return stored_as(whole, given[0]), *map(stored_as, states, given[1])


def _composed(cell: str) -> Rule:
    """The composed rule of a cell; as every rule, it takes out the padding's values itself."""
    count = len(CELLS[cell].states)

    def run(x: Tensor, *arrays: Any, norm: str, eps: float, reverse: bool,
            gradient_limit: float | None) -> tuple[Tensor, ...]:
        states, (w_x, w_h, bias, mask, *norm_arrays) = arrays[:count], arrays[count:]
        norms = norms_by_name(cell, norm, norm_arrays)
        if mask is not None and norm != "batch":
            x = where(expand_dims(mask, axis=2), x, 0.0)  # the weights' gradient has 0 times x, which may not be finite
        return walk(cell, x, states, w_x, w_h, bias, mask, lambda k: norms,
                    Settings(norm, eps), reverse, gradient_limit)

    return derived(run)


def norms_by_name(cell: str, norm: str, arrays: Sequence[Tensor]) -> NormParameters:
    """The norms' parameters by name, from the operators' order."""
    return dict(zip(norm_shapes(cell, norm, 1), arrays, strict=True))


@op("x: real[time, rows, n_in], h: real[rows, hidden], c: real[rows, hidden], w_x: real[n_in, gates], "
    "w_h: real[hidden, gates], bias: real[gates]?, mask: bool[time, rows]? -> hidden: like x, h: like h, c: like c")
def lstm(x: Tensor, h: Tensor, c: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None,
         mask: Tensor | None = None, norms: NormParameters | None = None, *, norm: str = "none",
         eps: AtLeast0 = 1e-5, reverse: bool = False, gradient_limit: Above0 | None = None,
         ) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM over a sequence: hidden states (T, B, H), the last hidden state and the last cell (B, H).

    Gates stand in the order i, f, g, o. See the module for shapes, `NORMS` for variants.

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    norms = check_cell("lstm", norm, x, (h, c), w_x, w_h, bias, norms, mask)
    return lstm.apply(x, h, c, w_x, w_h, bias, mask, *norms.values(), norm=norm, eps=eps, reverse=reverse,
                      gradient_limit=gradient_limit and float(gradient_limit))


@op("x: real[time, rows, n_in], h: real[rows, hidden], w_x: real[n_in, gates], w_h: real[hidden, gates], "
    "bias: real[gates]?, mask: bool[time, rows]? -> hidden: like x, h: like h")
def gru(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
        norms: NormParameters | None = None, *, norm: str = "none", eps: AtLeast0 = 1e-5,
        reverse: bool = False, gradient_limit: Above0 | None = None) -> tuple[Tensor, Tensor]:
    """A GRU over a sequence: hidden states (T, B, H) and the last one (B, H).

    Gates stand in the order z, r, n. See the module for shapes, `NORMS` for variants.

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    norms = check_cell("gru", norm, x, (h,), w_x, w_h, bias, norms, mask)
    return gru.apply(x, h, w_x, w_h, bias, mask, *norms.values(), norm=norm, eps=eps, reverse=reverse,
                     gradient_limit=gradient_limit and float(gradient_limit))


@op("x: real[time, rows, n_in], h: real[rows, hidden], w_x: real[n_in, gates], w_h: real[hidden, gates], "
    "bias: real[gates]?, mask: bool[time, rows]? -> hidden: like x, h: like h")
def rnn(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
        norms: NormParameters | None = None, *, norm: str = "none", eps: AtLeast0 = 1e-5,
        reverse: bool = False, gradient_limit: Above0 | None = None) -> tuple[Tensor, Tensor]:
    """A tanh RNN over a sequence: hidden states (T, B, H) and the last one (B, H).

    See the module for shapes, `NORMS` for variants.

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    norms = check_cell("rnn", norm, x, (h,), w_x, w_h, bias, norms, mask)
    return rnn.apply(x, h, w_x, w_h, bias, mask, *norms.values(), norm=norm, eps=eps, reverse=reverse,
                     gradient_limit=gradient_limit and float(gradient_limit))


lstm.add(_composed("lstm"))
gru.add(_composed("gru"))
rnn.add(_composed("rnn"))


# One time step ------------------------------------------------------------------------------------------
# For models with feedback, whose next input depends on the last output: x (B, in), states (B, H) -> the next states.
# The weights' gradients of all time steps are computed together: one product for w_x and one for w_h.

@hinted
def lstm_step(x: Tensor, h: Tensor, c: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None,
              norms: NormParameters | None = None, *, norm: str = "none", eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """The next hidden state and cell of an LSTM (eq. 20-22).

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    eps = check_number("lstm_step", "eps", eps, AT_LEAST_0)
    norms = check_cell("lstm_step", norm, x, (h, c), w_x, w_h, bias, norms)
    return lstm_cell.apply(linear(x, w_x), matmul(h, w_h), c, bias, *norms.values(), norm=norm, eps=eps)


@op("x_proj: real[rows, gates], h_proj: real[rows, gates], c: real[rows, hidden], bias: real[gates]? "
    "-> h: like x_proj, c: like c")
def lstm_cell(x_proj: Tensor, h_proj: Tensor, c: Tensor, bias: Tensor | None = None,
              norms: NormParameters | None = None, *, norm: str = "none", eps: AtLeast0 = 1e-5,
              ) -> tuple[Tensor, Tensor]:
    """The next hidden state and cell of an LSTM from its two products: what `lstm_step` does after them.

    A model whose input has several parts can compute the products of some parts for all time steps at once, and add
    those of the others at each.

    Shape:
        x_proj and h_proj (B, 4H), the products x W_x and h W_h; c (B, H), bias (4H,) or None -> (B, H) each.

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    norms = check_norms("lstm_cell", norms)
    check_variant("lstm", norm, "lstm_cell")
    check_float("lstm_cell", x_proj, h_proj, c, *norms.values(), *([] if bias is None else [bias]))
    if c.ndim != 2:
        raise ShapeError(f"[lstm_cell] c: expected (B, H), found shape {c.shape}")
    wide = (c.shape[0], 4 * c.shape[1])
    products: dict[str, tuple[Tensor, tuple[int, ...]]] = {"x_proj": (x_proj, wide), "h_proj": (h_proj, wide)}
    check_shapes("lstm_cell", "lstm", norm, c.shape[1], products, bias, norms)
    return lstm_cell.apply(x_proj, h_proj, c, bias, *norms.values(), norm=norm, eps=eps)


def _lstm_cell(x_proj: Tensor, h_proj: Tensor, c: Tensor, bias: Tensor | None, *norm_arrays: Tensor, norm: str,
               eps: float) -> tuple[Tensor, Tensor]:
    norms, s = norms_by_name("lstm", norm, norm_arrays), Settings(norm, eps)
    x_gates = formulas.input_to_gates("lstm", x_proj, bias, norms, s)
    return formulas.lstm_cell(x_gates, h_proj, c, bias, norms, s)


@hinted
def gru_step(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None,
             norms: NormParameters | None = None, *, norm: str = "none", eps: float = 1e-5) -> Tensor:
    """The next hidden state of a GRU (eq. 26-28).

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    return _composed_step("gru", norm, x, h, w_x, w_h, bias, norms, eps)


@hinted
def rnn_step(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None,
             norms: NormParameters | None = None, *, norm: str = "none", eps: float = 1e-5) -> Tensor:
    """The next hidden state of a tanh RNN (eq. 4).

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    return _composed_step("rnn", norm, x, h, w_x, w_h, bias, norms, eps)


def _composed_step(cell: str, norm: str, x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None,
                   norms: NormParameters | None, eps: float) -> Tensor:
    """The next state of a cell that has but one, by its formula: in float32, and stored as the state before."""
    name = f"{cell}_step"
    s = Settings(norm, check_number(name, "eps", eps, AT_LEAST_0))
    norms = check_cell(name, norm, x, (h,), w_x, w_h, bias, norms)
    x_gates = formulas.input_to_gates(cell, widened(linear(x, w_x)), bias, norms, s)
    [state] = formulas.next_states(cell, x_gates, widened(matmul(h, w_h)), (widened(h),), bias, norms, s)
    return stored_as(state, h)


lstm_cell.add(derived(_lstm_cell))
