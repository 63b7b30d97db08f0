"""The operators, each with a composed rule that every backend can run.

Elementwise, activations, reductions, shape, index, linear algebra, convolution, normalisation, losses, and the update
of Adam; `duoln help operators` lists them and says what differs from the array API standard. Faster rules for single
backends live in `duoln.kernels` and are attached by `duoln.runtime`.
"""

from typing import Never

from duoln.core.public_names import only_public, unknown_name
from duoln.core.pytorch_names import OF_OPS, of_standard
from duoln.core.tensor import OPERATORS
from duoln.ops.activation import elu, erf, gelu, silu
from duoln.ops.arithmetic import floor_divide, hypot, logaddexp, remainder
from duoln.ops.attention import additive_attention, scaled_dot_product_attention
from duoln.ops.conv import avg_pool1d, avg_pool2d, conv1d, conv2d, max_pool1d, max_pool2d
from duoln.ops.creation import arange, eye, full, full_like, linspace, ones, ones_like, zeros, zeros_like
from duoln.ops.elementwise import (
    abs,
    add,
    astype,
    ceil,
    clip,
    clip_gradient,
    cos,
    divide,
    equal,
    exp,
    expm1,
    floor,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
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
    pow,
    relu,
    round,
    rsqrt,
    sigmoid,
    sign,
    signbit,
    sin,
    softplus,
    sqrt,
    square,
    subtract,
    tanh,
    where,
)
from duoln.ops.group_norm import group_norm, instance_norm
from duoln.ops.index import embedding, getitem as getitem, one_hot, take, take_along_axis
from duoln.ops.linalg import activated_linear as activated_linear, einsum, linear, matmul, outer, tensordot, vecdot
from duoln.ops.loss import (
    absolute_error,
    bce_with_logits,
    huber,
    kl_div,
    linear_cross_entropy,
    probability_cross_entropy,
    softmax_cross_entropy,
    squared_error,
)
from duoln.ops.norm import (
    add_layer_norm as add_layer_norm,
    add_rms_norm as add_rms_norm,
    batch_norm,
    layer_norm,
    rms_norm,
    weight_norm,
)
from duoln.ops.product import prod
from duoln.ops.recurrent import (
    gru as gru,
    gru_step as gru_step,
    lstm as lstm,
    lstm_cell as lstm_cell,
    lstm_step as lstm_step,
    rnn as rnn,
    rnn_step as rnn_step,
)
from duoln.ops.reduce import (
    all,
    any,
    argmax,
    argmin,
    cumulative_sum,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    softmax,
    std,
    sum,
    var,
    vector_norm,
)
from duoln.ops.shape import (
    broadcast_arrays,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    matrix_transpose,
    moveaxis,
    pad,
    permute_dims,
    repeat,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    tile,
    tril,
    triu,
    unstack,
)
from duoln.ops.update import (
    adam_rates as adam_rates,
    adam_update as adam_update,
    counted as counted,
    global_norm as global_norm,
    listed_rate as listed_rate,
)

__all__ = [
    "abs", "absolute_error", "add", "additive_attention", "all", "any", "arange", "argmax", "argmin", "astype",
    "avg_pool1d", "avg_pool2d", "batch_norm", "bce_with_logits", "broadcast_arrays", "broadcast_to", "ceil", "clip",
    "clip_gradient", "concat", "conv1d", "conv2d", "cos", "cumulative_sum", "divide", "einsum", "elu", "embedding",
    "equal", "erf", "exp", "expand_dims", "expm1", "eye", "flip", "floor", "floor_divide", "full", "full_like",
    "gelu", "greater", "greater_equal", "group_norm", "huber", "hypot", "instance_norm", "isfinite", "isinf", "isnan",
    "kl_div", "layer_norm", "leaky_relu", "less", "less_equal", "linear", "linear_cross_entropy", "linspace", "log",
    "log1p", "log_softmax", "logaddexp", "logical_and", "logical_not", "logical_or", "logsumexp", "matmul",
    "matrix_transpose", "max", "max_pool1d", "max_pool2d", "maximum", "mean", "min", "minimum", "moveaxis",
    "multiply", "negative", "not_equal", "one_hot", "ones", "ones_like", "outer", "pad", "permute_dims", "pow",
    "probability_cross_entropy", "prod", "relu", "remainder", "repeat", "reshape", "rms_norm", "roll", "round",
    "rsqrt", "scaled_dot_product_attention", "sigmoid", "sign", "signbit", "silu", "sin", "softmax",
    "softmax_cross_entropy", "softplus", "split", "sqrt", "square", "squared_error", "squeeze", "stack", "std",
    "subtract", "sum", "take", "take_along_axis", "tanh", "tensordot", "tile", "tril", "triu", "unstack", "var",
    "vecdot", "vector_norm", "weight_norm", "where", "zeros", "zeros_like",
]
WITHIN = ("activated_linear", "adam_rates", "adam_update", "add_layer_norm", "add_rms_norm", "counted", "getitem",
          "global_norm", "gru", "gru_step", "listed_rate", "lstm", "lstm_cell", "lstm_step", "rnn", "rnn_step")
"""Operators that layers, optimizers and `x[key]` call: they are here, and not among the public names."""
OPERATORS.update((name, globals()[name]) for name in (*__all__, *WITHIN))


def __getattr__(name: str) -> Never:
    remedies = OF_OPS if name in OF_OPS or name.startswith("_") else of_standard()
    raise unknown_name("duoln.ops", name, remedies, __all__)


only_public(globals(), OF_OPS)
