"""A copy of the parameters for a pass that stores activations and weights in 16 bits."""

from __future__ import annotations

from duoln import tree
from duoln.backends.protocol import STORAGE
from duoln.core import Tensor
from duoln.core.arguments import check_choice
from duoln.core.pytorch_names import hinted
from duoln.core.spec import check_tensors
from duoln.nn.module import Params
from duoln.nn.population import is_statistic

_LEAST_AXES = 2
"""The least number of axes of a parameter that is rounded."""
_OF_NORMS = ("gain", "bias")
"""The first words of the names of a norm's parameters, which may have several axes and are not rounded."""


@hinted
def in_16_bits(params: Params, dtype: str = "bfloat16") -> Params:
    """The parameters with which a model computes in 16 bits: each weight of float32 rounded, the rest as it is.

    Gains, biases and the statistics of a population stay in float32, and so does what has fewer than two axes. Called
    inside a loss, it gives gradients of float32, for an optimizer that keeps float32 parameters.

        >>> layer = nn.Linear(2, 3)
        >>> small = nn.in_16_bits(duoln.init(layer, 0))
        >>> {name: p.dtype for name, p in small.items()}
        {'weight': 'bfloat16', 'bias': 'float32'}
        >>> layer(small, duoln.tensor([[1.0, 2.0]]).astype("bfloat16")).dtype
        'bfloat16'

    Raises:
        DtypeError: a leaf is not a tensor. UsageError: `dtype` is not "bfloat16" or "float16".
    """
    check_choice("in_16_bits", "dtype", dtype, STORAGE)
    check_tensors("in_16_bits", *tree.leaves(params))
    result: Params = tree.unflatten(params, [p.astype(dtype) if _is_rounded(path, p) else p
                                             for path, p in tree.items(params)])
    return result


def _is_rounded(path: str, p: Tensor) -> bool:
    own = path.rpartition(".")[2]
    return (p.dtype == "float32" and p.ndim >= _LEAST_AXES and not is_statistic(path)
            and own.partition("_")[0] not in _OF_NORMS)
