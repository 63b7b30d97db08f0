"""The arithmetic of optimizers over whole lists of tensors. They are ops, so that a backend can fuse them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import Any, Literal, NamedTuple

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule, Tensor, op
from duoln.core.arguments import LARGEST, AtLeast0, Below1, check_choice
from duoln.core.footprint import owner, sole_owner
from duoln.core.spec import check_float
from duoln.core.step.symbol import current_trace, is_traced, tracing
from duoln.errors import ShapeError, UsageError
from duoln.ops.common import check_not_16_bits, greatest_size, scale_of


@op("*arrays: real -> real[]")
def global_norm(*arrays: Tensor) -> Tensor:
    """The Euclidean norm of all entries of all tensors together.

    Shape:
        any number of tensors of any shapes -> ().

    Raises:
        UsageError: there are no tensors. DtypeError: one is not a float tensor.
    """
    check_float("global_norm", *arrays)
    if not arrays:
        raise UsageError("[global_norm] expected tensors, found none")
    return global_norm.apply(*arrays)


def norm_of(be: Backend, arrays: Sequence[Array]) -> Array:
    """The common norm of native arrays. A matrix product makes one pass over memory and needs no array of squares."""
    greatest = be.zeros((1,), be.dtype(arrays[0]))
    for a in arrays:
        if prod(a.shape):
            greatest = be.maximum(greatest, be.reshape(greatest_size(be, a, tuple(range(len(a.shape)))), (1,)))
    unit, total = scale_of(be, greatest), None  # squares of large and small values overflow and vanish
    for a in arrays:
        scaled, size = a / unit, prod(a.shape)
        square = be.matmul(be.reshape(scaled, (1, size)), be.reshape(scaled, (size, 1)))
        total = square if total is None else total + square
    return be.reshape(be.sqrt(total), ()) * be.reshape(unit, ())


def _norm_forward(be: Backend, *arrays: Array) -> tuple[Array, Any]:
    norm = norm_of(be, arrays)
    return norm, (arrays, norm)


def norm_vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    """Each array over the norm; of zeros alone the gradient is 0."""
    arrays, norm = saved
    divisor = be.where(norm == 0, 1.0, norm)
    return [a / divisor * gout if need else None for a, need in zip(arrays, needs, strict=True)]


global_norm.add(Rule("composed", _norm_forward, norm_vjp))


@op("rates: real[n], update: int32[] -> real[]")
def listed_rate(rates: Tensor, update: Tensor) -> Tensor:
    """The rate of an update, by its number from 0: `rates[update]`, the last one of later updates.

    Shape:
        rates (n,), update int32 () -> ().
    """


def _listed_forward(be: Backend, rates: Array, update: Array) -> tuple[Array, Any]:
    last = be.minimum(be.reshape(update, (1,)), rates.shape[0] - 1)
    return be.reshape(be.take(rates, last, 0), ()), None


listed_rate.add(Rule("composed", _listed_forward))


@op("updates: int32[] -> int32[]")
def counted(updates: Tensor) -> Tensor:
    """One update more; the greatest number of int32 stays as it is.

    Shape:
        updates int32 () -> ().
    """


counted.add(Rule("composed", lambda be, updates: (one_more(be, updates), None)))


def one_more(be: Backend, updates: Array) -> Array:
    """A native number of updates plus 1; the greatest number of int32 stays as it is."""
    return be.minimum(updates, LARGEST - 1) + 1


@op("rate: real[], updates: int32[] -> step: real[], epsilon: real[], updated: int32[]")
def adam_rates(rate: Tensor, updates: Tensor, *, beta1: Below1, beta2: Below1, eps: AtLeast0,
               bias_correction: Literal["standard", "kiros2015"] = "standard") -> tuple[Tensor, Tensor, Tensor]:
    """`rate` and `eps` of `adam_update` from the learning rate and the number of updates so far; that number plus 1.

    The greatest number of int32 stays as it is: by then the correction has long been 1.

    Both include the factors 1 - beta of the moments and the bias correction (see `optim.Adam`), so that no pass over
    the parameters multiplies by them. It has no gradient.

    Shape:
        rate (), updates int32 () -> (), () and int32 ().

    Raises:
        ShapeError: rate or updates has axes. DtypeError: rate is not a float tensor, updates not an int32 one.
        UsageError: a beta is not in [0, 1), eps is below 0, or the bias correction is unknown or divides by 0.
    """
    adam_rates.check(rate, updates)
    check_correction("adam_rates", beta1, beta2, bias_correction)
    return adam_rates.apply(rate, updates, beta1=beta1, beta2=beta2, eps=eps, bias_correction=bias_correction)


def check_correction(name: str, beta1: float, beta2: float, bias_correction: str) -> None:
    """Raises UsageError for a correction that is unknown, or that these betas make 0; DtypeError for no string.

    1 - (1 - beta)^t is 0 for a beta of 0: nothing can be divided by it, and a rate that it multiplies moves nothing.
    """
    check_choice(name, "bias_correction", bias_correction, ("standard", "kiros2015"))
    for role, beta in (("beta1", beta1), ("beta2", beta2)):
        if bias_correction == "kiros2015" and 1 - beta == 1:
            raise UsageError(f"[{name}] {role}: expected a number above 0 with bias_correction 'kiros2015', whose "
                             f"1 - (1 - {role})^t would be 0, found {beta}")


class Correction(NamedTuple):
    """The factors of `adam_rates`; the moments are kept without their own: m = (1 - beta1) m'.

    The rate is multiplied by root / (1 - beta1^t) and by `rate`, epsilon by `eps`, and by the root if `corrects_eps`;
    root is the root of 1 - beta2^t.
    """

    beta1: float
    beta2: float
    rate: float
    eps: float
    corrects_eps: bool

    @classmethod
    def of(cls, beta1: float, beta2: float, eps: float, bias_correction: str) -> Correction:
        """The correction for settings of `optim.Adam`."""
        of_m, of_v = 1 - beta1, math.sqrt(1 - beta2)
        if bias_correction == "standard":
            return cls(beta1, beta2, of_m / of_v, eps / of_v, True)
        return cls(1 - beta1, 1 - beta2, of_m / of_v, eps / of_v, False)


def _rates_forward(be: Backend, rate: Array, updates: Array, **attrs: Any) -> tuple[tuple[Array, ...], Any]:
    by, update = Correction.of(**attrs), one_more(be, updates)
    t = be.astype(update, be.dtype(rate))
    root = be.sqrt(_one_minus_power(be, by.beta2, t))
    scaled = rate * root / _one_minus_power(be, by.beta1, t) * by.rate
    corrected = (root if by.corrects_eps else rate * 0.0 + 1.0) * by.eps
    return (be.reshape(scaled, ()), be.reshape(corrected, ()), be.reshape(update, ())), None


def _one_minus_power(be: Backend, beta: float, t: Array) -> Array:
    """1 - beta^t, exact also for small t, where 1 - exp(...) would lose digits."""
    return t * 0.0 + 1.0 if beta == 0.0 else -be.expm1(t * math.log(beta))


adam_rates.add(Rule("composed", _rates_forward))


@op
def adam_update(rate: Tensor, eps: Tensor, scale: Tensor | None, keep: Tensor | None, *arrays: Tensor, beta1: Below1,
                beta2: Below1, donate: bool = False) -> tuple[Tensor, ...]:
    """One step of Adam (Kingma and Ba 2015, algorithm 1) on n tensors at once; it has no gradient.

    g <- scale g;  m <- beta1 m + g;  v <- beta2 v + g^2;  p <- keep p - rate m / (sqrt(v) + eps).
    The 0-d tensors `rate` and `eps` include the factors 1 - beta of the moments and the bias correction. This saves
    two passes over every array. `scale` and `keep` are 0-d tensors too; None is 1. `keep` is 1 minus the learning rate
    times the weight decay (Loshchilov and Hutter 2019, algorithm 2).

    Shape:
        `arrays` is n parameters, n gradients, n first and n second moments; the result is the 3 n new
        parameters, first and second moments, and the gradients' common norm before they are scaled, ().

    With `donate` the parameters and moments may be overwritten: the caller promises not to use them again. If one of
    the tensors is a part of another array, or two share memory, nothing is overwritten, because the update would change
    values of the other.

    Raises:
        ShapeError: the number of tensors is not a multiple of 4, or their shapes differ.
        DtypeError: a tensor has 16 bits, which would lose most steps.
    """
    optional = {"scale": scale, "keep": keep}
    numbers = {"rate": rate, "eps": eps, **{name: number for name, number in optional.items() if number is not None}}
    check_float("adam_update", *numbers.values(), *arrays)
    check_not_16_bits("adam_update", "parameters, gradients and moments", *arrays)
    if len(arrays) % 4 or not arrays:
        raise ShapeError(f"[adam_update] expected 4 n tensors, found {len(arrays)}")
    for name, number in numbers.items():
        if number.shape != ():
            raise ShapeError(f"[adam_update] expected 0-d {name}, found shape {number.shape}")
    n = len(arrays) // 4
    for i in range(n):
        shapes = {arrays[i + k * n].shape for k in range(4)}
        if len(shapes) > 1:
            raise ShapeError(f"[adam_update] tensor {i}: expected parameter, gradient and moments of one shape, "
                             f"found {' and '.join(map(str, sorted(shapes)))}")
    return adam_update.apply(rate, eps, scale, keep, *arrays, beta1=beta1, beta2=beta2, donate=donate)


def are_apart(kept: Sequence[Array], gradients: Sequence[Array]) -> bool:
    """True if each of the arrays that are kept from update to update shares its memory with no other one and with no
    gradient: only then may a rule overwrite them.
    """
    if tracing and is_traced(kept):
        return current_trace().overwrites(kept, gradients)
    owners = {id(whole) for a in kept if (whole := sole_owner(a)) is not None}
    return len(owners) == len(kept) and owners.isdisjoint([id(owner(g)) for g in gradients])


def _adam_forward(be: Backend, rate: Array, eps: Array, scale: Array | None, keep: Array | None, *arrays: Array,
                  beta1: float, beta2: float, donate: bool) -> tuple[tuple[Array, ...], Any]:
    n = len(arrays) // 4
    params, moments, squares = [], [], []
    norm = norm_of(be, arrays[n:2 * n])
    for i in range(n):
        p, g, m, v = arrays[i], arrays[n + i], arrays[2 * n + i], arrays[3 * n + i]
        if scale is not None:
            g = g * scale
        m = beta1 * m + g
        v = beta2 * v + g * g
        params.append((p if keep is None else p * keep) - rate * m / (be.sqrt(v) + eps))
        moments.append(m)
        squares.append(v)
    return (*params, *moments, *squares, norm), None


adam_update.add(Rule("composed", _adam_forward))
