"""Layers as pure functions of parameter trees. A Module holds hyper-parameters, never arrays."""

from typing import Never

from duoln.core.pytorch_names import OF_NN, unknown_name
from duoln.nn import init
from duoln.nn.attention import MultiHeadAttention, TransformerBlock
from duoln.nn.convolution import Conv1d, Conv2d
from duoln.nn.layers import Embedding, Linear, Sequential, flatten
from duoln.nn.module import Module, Params
from duoln.nn.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm, WeightNorm
from duoln.nn.population import with_population
from duoln.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, Recurrent, RecurrentCell, RNNCell

__all__ = [
    "GRU", "LSTM", "RNN", "BatchNorm", "Conv1d", "Conv2d", "Embedding", "GRUCell", "GroupNorm", "InstanceNorm",
    "LSTMCell", "LayerNorm", "Linear", "Module", "MultiHeadAttention", "Params", "RMSNorm", "RNNCell", "Recurrent",
    "RecurrentCell", "Sequential", "TransformerBlock", "WeightNorm", "flatten", "init", "with_population",
]


def __getattr__(name: str) -> Never:
    raise unknown_name("duoln.nn", name, OF_NN, __all__)
