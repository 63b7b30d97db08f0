"""Layers as pure functions of parameter trees. A Module holds hyper-parameters, never arrays."""

from duoln.core.public_names import only_public
from duoln.core.pytorch_names import OF_NN
from duoln.core.tensor import OPERATORS
from duoln.nn import init
from duoln.nn.activations import (
    ELU,
    GELU,
    Flatten,
    Identity,
    LeakyReLU,
    LogSoftmax,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from duoln.nn.attention import MultiHeadAttention, TransformerBlock
from duoln.nn.cells import GRUCell, LSTMCell, RecurrentCell, RNNCell
from duoln.nn.convolution import Conv1d, Conv2d
from duoln.nn.dropout import Dropout, DropoutMasks, no_dropout, with_masks
from duoln.nn.layers import Embedding, Linear, Sequential
from duoln.nn.module import Module, Params
from duoln.nn.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm, WeightNorm
from duoln.nn.population import with_population, without_population
from duoln.nn.recurrent import GRU, LSTM, RNN, Recurrent
from duoln.nn.sixteen_bits import in_16_bits

__all__ = [
    "ELU", "GELU", "GRU", "LSTM", "RNN", "BatchNorm", "Conv1d", "Conv2d", "Dropout", "DropoutMasks", "Embedding",
    "Flatten", "GRUCell", "GroupNorm", "Identity", "InstanceNorm", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear",
    "LogSoftmax", "Module", "MultiHeadAttention", "Params", "RMSNorm", "RNNCell", "ReLU", "Recurrent",
    "RecurrentCell", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh", "TransformerBlock",
    "WeightNorm", "in_16_bits", "init", "no_dropout", "with_masks", "with_population",
    "without_population",
]
only_public(globals(), {**{f: f"duoln.ops.{f}" for f in OPERATORS}, **OF_NN})
