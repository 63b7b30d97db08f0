"""One time step of a recurrent network, for models with feedback: the next input depends on the last output.

Shape:
    x (B, in), states (B, H) -> the next states (B, H); weights and norms as in `sequences`.

The weights' gradients of all time steps are computed together: one product for w_x and one for w_h, for any
number of time steps.
"""

from __future__ import annotations

from duoln.core import Tensor, derived, op
from duoln.core.arguments import AT_LEAST_0, check_number
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_float
from duoln.errors import ShapeError
from duoln.ops.elementwise import stored_as, widened
from duoln.ops.linalg import linear, matmul
from duoln.ops.recurrent import formulas
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.sequences import NormParameters, check_cell, check_norms, check_shapes, norms_by_name
from duoln.ops.recurrent.variants import check_variant


@hinted
def lstm_step(x: Tensor, h: Tensor, c: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None,
              norms: NormParameters | None = None, *, norm: str = "none", eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """The next hidden state and cell of an LSTM (eq. 20-22).

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    norms = check_norms("lstm_step", norms)
    eps = check_number("lstm_step", "eps", eps, AT_LEAST_0)
    check_cell("lstm_step", norm, x, (h, c), w_x, w_h, bias, norms)
    return lstm_cell.apply(linear(x, w_x), matmul(h, w_h), c, bias, *norms.values(), norm=norm, eps=eps)


@op("x_proj: real[rows, gates], h_proj: real[rows, gates], c: real[rows, hidden], bias: real[gates]? "
    "-> h: like x_proj, c: like c")
def lstm_cell(x_proj: Tensor, h_proj: Tensor, c: Tensor, bias: Tensor | None = None,
              norms: NormParameters | None = None, *, norm: str = "none", eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """The next hidden state and cell of an LSTM from its two products: what `lstm_step` does after them.

    A model whose input has several parts can compute the products of some parts for all time steps at once, and add
    those of the others at each.

    Shape:
        x_proj and h_proj (B, 4H), the products x W_x and h W_h; c (B, H), bias (4H,) or None -> (B, H) each.

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    norms = check_norms("lstm_cell", norms)
    eps = check_number("lstm_cell", "eps", eps, AT_LEAST_0)
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
    norms, s = check_norms(name, norms), Settings(norm, check_number(name, "eps", eps, AT_LEAST_0))
    check_cell(name, norm, x, (h,), w_x, w_h, bias, norms)
    x_gates = formulas.input_to_gates(cell, widened(linear(x, w_x)), bias, norms, s)
    [state] = formulas.next_states(cell, x_gates, widened(matmul(h, w_h)), (widened(h),), bias, norms, s)
    return stored_as(state, h)


lstm_cell.add(derived(_lstm_cell))
