"""How the weights of the LSTMs and of the attention start: as in TensorFlow, or with orthogonal recurrent weights."""

from __future__ import annotations

from math import sqrt
from typing import Literal, NamedTuple

from duoln import nn
from duoln.nn.init import Initializer

Start = Literal["tensorflow", "orthogonal"]


class OfLstm(NamedTuple):
    """The initialisers of a layer of LSTM cells."""

    input: Initializer
    recurrent: Initializer


def of_lstm(start: Start, n_in: int, n_hidden: int) -> OfLstm:
    """The initialisers of a layer of LSTM cells.

    In TensorFlow a cell has one matrix for input and state and all gates, (n_in + n_hidden, 4 n_hidden), and a variable
    without an initialiser starts as Glorot and Bengio (2010) have it, uniform in +-sqrt(6 / (n_in + 5 n_hidden)). In
    "orthogonal" the input weights are Glorot's and the recurrent ones orthogonal, gate by gate.
    """
    if start == "orthogonal":
        return OfLstm(nn.init.glorot, nn.init.orthogonal)
    kernel = nn.init.uniform(sqrt(6.0 / (n_in + 5 * n_hidden)))
    return OfLstm(kernel, kernel)


def of_score(start: Start, width: int) -> Initializer:
    """The initialiser of the attention's vector v (width,).

    TensorFlow takes the length of a vector for both its fans: uniform in +-sqrt(3 / width). In "orthogonal" it is
    Glorot's matrix of one column.
    """
    return nn.init.uniform(sqrt(3.0 / width) if start == "tensorflow" else sqrt(6.0 / (width + 1)))
