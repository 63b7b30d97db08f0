"""One step of a recurrent network, for models with feedback: the next input depends on the last output.

Shape:
    x (B, in), states (B, H) -> the next states (B, H); weights and norms as in `sequences`.

The weights' gradients of all steps are computed together: one product for w_x and one for w_h, however many
steps there are.
"""

from __future__ import annotations

from duoln.core import Tensor
from duoln.ops.linalg import linear, matmul
from duoln.ops.norm import EpsilonPlace
from duoln.ops.recurrent import formulas
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.sequences import NormParameters, check_cell


def lstm_step(x: Tensor, h: Tensor, c: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None,
              norms: NormParameters | None = None, *, norm: str = "layer", eps: float = 1e-5,
              eps_place: EpsilonPlace = "inside") -> tuple[Tensor, Tensor]:
    """The next hidden state and cell of an LSTM (eq. 20-22).

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    norms, s = norms or {}, Settings(norm, eps, eps_place)
    check_cell("lstm", norm, x, (h, c), w_x, w_h, bias, norms, None, time=False)
    side = formulas.input_side("lstm", linear(x, w_x), bias, norms, s)
    return formulas.lstm_cell(side, matmul(h, w_h), c, bias, norms, s)


def gru_step(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None,
             norms: NormParameters | None = None, *, norm: str = "layer", eps: float = 1e-5,
             eps_place: EpsilonPlace = "inside") -> Tensor:
    """The next hidden state of a GRU (eq. 26-28).

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    norms, s = norms or {}, Settings(norm, eps, eps_place)
    check_cell("gru", norm, x, (h,), w_x, w_h, bias, norms, None, time=False)
    side = formulas.input_side("gru", linear(x, w_x), bias, norms, s)
    return formulas.gru_cell(side, matmul(h, w_h), h, bias, norms, s)


def rnn_step(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None = None,
             norms: NormParameters | None = None, *, norm: str = "layer", eps: float = 1e-5,
             eps_place: EpsilonPlace = "inside") -> Tensor:
    """The next hidden state of a tanh RNN (eq. 4).

    Raises:
        UsageError, ShapeError, DtypeError: an unknown variant, or arrays that do not fit it.
    """
    norms, s = norms or {}, Settings(norm, eps, eps_place)
    check_cell("rnn", norm, x, (h,), w_x, w_h, bias, norms, None, time=False)
    side = formulas.input_side("rnn", linear(x, w_x), bias, norms, s)
    return formulas.rnn_cell(side, matmul(h, w_h), bias, norms, s)
