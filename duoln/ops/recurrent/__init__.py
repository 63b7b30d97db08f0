"""Recurrent operators: RNN, LSTM and GRU, each over a sequence and as one time step, in every
variant with layer norm that the literature has.

`variants` says which parameters a variant has, `formulas` what a cell computes; `sequences` has the operators.
"""

from duoln.ops.recurrent.sequences import gru, gru_step, lstm, lstm_cell, lstm_step, rnn, rnn_step
from duoln.ops.recurrent.variants import CELLS, NORMS, norm_shapes

__all__ = ["CELLS", "NORMS", "gru", "gru_step", "lstm", "lstm_cell", "lstm_step", "norm_shapes", "rnn", "rnn_step"]
