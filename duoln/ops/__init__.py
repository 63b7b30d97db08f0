"""The operators, each with a composed rule that every backend can run.

Elementwise, reductions, shape, index, linear algebra, convolution, normalisation, losses, and the update
of Adam. Faster rules for single backends live in `duoln.kernels` and are attached by `duoln.runtime`.
"""

from typing import Any, Never, cast

from duoln.core.pytorch_names import OF_OPS, unknown_name
from duoln.core.tensor import OPERATORS
from duoln.ops.attention import additive_attention
from duoln.ops.conv import avg_pool2d, conv2d, max_pool2d
from duoln.ops.creation import arange, full, ones, ones_like, zeros, zeros_like
from duoln.ops.elementwise import (
    abs,
    add,
    astype,
    clip,
    cos,
    divide,
    equal,
    exp,
    expm1,
    floor,
    greater,
    greater_equal,
    isfinite,
    leaky_relu,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    power,
    relu,
    sigmoid,
    sign,
    sin,
    softplus,
    sqrt,
    square,
    subtract,
    tanh,
    where,
)
from duoln.ops.gradient import clip_gradient
from duoln.ops.index import embedding, getitem, one_hot, take, take_along_axis
from duoln.ops.linalg import linear, matmul
from duoln.ops.linear_loss import linear_cross_entropy
from duoln.ops.loss import bce_with_logits, softmax_cross_entropy
from duoln.ops.norm import batch_norm, layer_norm, weight_norm
from duoln.ops.recurrent import gru, gru_step, lstm, lstm_cell, lstm_step, rnn, rnn_step
from duoln.ops.reduce import (
    all,
    any,
    argmax,
    cumsum,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    softmax,
    sum,
)
from duoln.ops.shape import (
    broadcast_to,
    concat,
    expand_dims,
    flip,
    pad,
    permute_dims,
    reshape,
    split,
    squeeze,
    stack,
    unstack,
)
from duoln.ops.update import adam_rates, adam_update, global_norm

OPERATORS.update(
    abs=abs, logical_and=logical_and, logical_or=logical_or, logical_not=logical_not,
    add=add, subtract=subtract, multiply=multiply, divide=divide, power=power, negative=negative, matmul=matmul,
    equal=equal, not_equal=not_equal, less=less, less_equal=less_equal, greater=greater,
    greater_equal=greater_equal, getitem=getitem, unstack=cast(Any, unstack), sum=sum, mean=mean, max=max,
    min=min, reshape=reshape, permute_dims=permute_dims, astype=astype,
)

__all__ = [
    "abs", "adam_rates", "adam_update", "add", "additive_attention", "all", "any", "arange", "argmax", "astype",
    "avg_pool2d", "batch_norm", "bce_with_logits", "broadcast_to", "clip", "clip_gradient", "concat", "conv2d", "cos",
    "cumsum",
    "divide", "embedding", "equal", "exp", "expand_dims", "expm1", "flip", "floor", "full",
    "getitem", "global_norm", "greater", "greater_equal", "gru", "gru_step", "isfinite", "layer_norm",
    "leaky_relu", "less", "less_equal", "linear", "linear_cross_entropy", "log", "log1p", "log_softmax",
    "logical_and", "logical_not", "logical_or", "logsumexp", "lstm", "lstm_cell", "lstm_step", "matmul", "max",
    "max_pool2d", "maximum", "mean", "min", "minimum", "multiply", "negative", "not_equal",
    "one_hot", "ones", "ones_like", "pad", "permute_dims", "power", "relu", "reshape", "rnn",
    "rnn_step", "sigmoid", "sign", "sin", "softmax", "softmax_cross_entropy", "softplus", "split",
    "sqrt", "square", "squeeze", "stack", "subtract", "sum", "take", "take_along_axis", "tanh", "unstack",
    "weight_norm", "where", "zeros", "zeros_like",
]


def __getattr__(name: str) -> Never:
    raise unknown_name("duoln.ops", name, OF_OPS, __all__)
