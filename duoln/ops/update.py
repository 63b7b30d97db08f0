"""The arithmetic of Adam over a whole list of tensors. It is an op, so that a backend can fuse it."""

from __future__ import annotations

from typing import Any

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import BELOW_1, check_flag, check_number
from duoln.core.footprint import owner
from duoln.errors import ShapeError
from duoln.ops.common import check_float


@op
def adam_update(rate: Tensor, eps: Tensor, *arrays: Tensor, beta1: float, beta2: float,
                donate: bool = False) -> tuple[Tensor, ...]:
    """One step of Adam (Kingma and Ba 2015, algorithm 1) on n tensors at once; it has no gradient.

    m <- beta1 m + g;  v <- beta2 v + g^2;  p <- p - rate m / (sqrt(v) + eps).
    The 0-d tensors `rate` and `eps` include the factors 1 - beta of the moments and the bias correction. This saves
    two passes over every array.

    Shape:
        `arrays` is n parameters, n gradients, n first and n second moments; the result is the 3 n new
        parameters, first and second moments.

    With `donate` the parameters and moments may be overwritten: the caller promises not to use them again. If two of
    the tensors share memory, nothing is overwritten, because the update of one would change the values of the other.

    Raises:
        ShapeError: the number of tensors is not a multiple of 4, or their shapes differ.
    """
    check_float("adam_update", rate, eps, *arrays)
    beta1 = check_number("adam_update", "beta1", beta1, BELOW_1)
    beta2 = check_number("adam_update", "beta2", beta2, BELOW_1)
    check_flag("adam_update", "donate", donate)
    if len(arrays) % 4:
        raise ShapeError(f"[adam_update] expected 4 n tensors, found {len(arrays)}")
    if rate.shape != () or eps.shape != ():
        raise ShapeError(f"[adam_update] expected 0-d rate and eps, found shapes {rate.shape} and {eps.shape}")
    n = len(arrays) // 4
    for i in range(n):
        shapes = {arrays[i + k * n].shape for k in range(4)}
        if len(shapes) > 1:
            raise ShapeError(f"[adam_update] tensor {i}: expected parameter, gradient and moments of one shape, "
                             f"found {' and '.join(map(str, sorted(shapes)))}")
    apart = donate and len({id(owner(a.data)) for a in arrays}) == len(arrays)
    return adam_update.apply(rate, eps, *arrays, beta1=beta1, beta2=beta2, donate=apart)


def _adam_forward(be: Backend, rate: Array, eps: Array, *arrays: Array, beta1: float, beta2: float,
                  donate: bool) -> tuple[tuple[Array, ...], Any]:
    n = len(arrays) // 4
    params, moments, squares = [], [], []
    for i in range(n):
        p, g, m, v = arrays[i], arrays[n + i], arrays[2 * n + i], arrays[3 * n + i]
        m = beta1 * m + g
        v = beta2 * v + g * g
        params.append(p - rate * m / (be.sqrt(v) + eps))
        moments.append(m)
        squares.append(v)
    return (*params, *moments, *squares), None


adam_update.add(Rule("composed", _adam_forward))
