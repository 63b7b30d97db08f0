"""Optimisers as pure functions over trees of tensors.

    optimizer = optim.Adam(learning_rate=1e-3)
    slots = optimizer.init(params)
    params, slots = optimizer.update(params, gradients, slots, rate)

`rate` is a 0-d tensor: inside a compiled step a Python number would be frozen. Slots mirror the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from duoln import ops, tree
from duoln.core import Tensor
from duoln.errors import UsageError

Params = Any
Schedule = Callable[[int], float]
Clip = Callable[[Params], Params]


@dataclass(frozen=True)
class Optimizer:
    """The base: a learning rate, a number or a function of the step, and an optional clipping of gradients.

    With `donate`, `update` may overwrite the parameters and slots that it is given.
    """

    learning_rate: float | Schedule
    clip: Clip | None = None
    donate: bool = False

    def rate_at(self, step: int) -> float:
        """The learning rate of the update numbered `step`, from 0."""
        rate = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        if not rate >= 0 or math.isinf(rate):
            raise UsageError(f"[optim] expected a finite learning rate of at least 0, found {rate} at step {step}")
        return float(rate)

    def init(self, params: Params) -> dict[str, Any]:
        """The slots at the start."""
        return {}

    def update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
               ) -> tuple[Params, dict[str, Any]]:
        """New parameters and slots.

        Raises:
            ShapeError: gradients or slots of another form than the parameters.
        """
        return self._update(params, self.clip(gradients) if self.clip else gradients, slots, rate)

    def _update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                ) -> tuple[Params, dict[str, Any]]:
        raise TypeError(f"{type(self).__name__} does not define an update")


@dataclass(frozen=True)
class SGD(Optimizer):
    """p <- p - rate * velocity, velocity <- momentum * velocity + g (Sutskever et al. 2013, with Nesterov's form)."""

    momentum: float = 0.0
    nesterov: bool = False

    def init(self, params: Params) -> dict[str, Any]:
        return {"velocity": zeros_like(params)} if self.momentum else {}

    def _update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                ) -> tuple[Params, dict[str, Any]]:
        if not self.momentum:
            return tree.map(lambda p, g: p - g * rate, params, gradients), {}
        velocity = tree.map(lambda v, g: v * self.momentum + g, slots["velocity"], gradients)
        step = tree.map(lambda v, g: v * self.momentum + g, velocity, gradients) if self.nesterov else velocity
        return tree.map(lambda p, s: p - s * rate, params, step), {"velocity": velocity}


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """p <- p - rate * g / (sqrt(s) + eps), s <- decay * s + (1 - decay) * g^2 (Tieleman and Hinton 2012)."""

    decay: float = 0.9
    eps: float = 1e-8

    def init(self, params: Params) -> dict[str, Any]:
        return {"square": zeros_like(params)}

    def _update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                ) -> tuple[Params, dict[str, Any]]:
        square = tree.map(lambda s, g: s * self.decay + g * g * (1 - self.decay), slots["square"], gradients)
        new = tree.map(lambda p, g, s: p - g * rate / (ops.sqrt(s) + self.eps), params, gradients, square)
        return new, {"square": square}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1).

    `bias_correction="kiros2015"` is that of the code behind the paper's order-embedding and skip-thoughts
    experiments: it divides by 1 - 0.1^t and 1 - 0.001^t, and leaves epsilon uncorrected, so early steps are up
    to 6.6 times larger than Adam's.

    The slots m and v hold the moments divided by 1 - beta1 and 1 - beta2.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    bias_correction: Literal["standard", "kiros2015"] = "standard"

    def __post_init__(self) -> None:
        if self.bias_correction not in ("standard", "kiros2015"):
            raise UsageError(f"[Adam] expected bias_correction 'standard' or 'kiros2015', "
                             f"found {self.bias_correction!r}")
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= beta < 1:
                raise UsageError(f"[Adam] expected {name} in [0, 1), found {beta}")

    def init(self, params: Params) -> dict[str, Any]:
        backend = tree.leaves(params)[0].backend
        return {"m": zeros_like(params), "v": zeros_like(params),
                "step": Tensor(backend.zeros((), "int32"), backend)}

    def _update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                ) -> tuple[Params, dict[str, Any]]:
        step = slots["step"] + 1
        t = ops.astype(step, dtype=rate.dtype)
        # The moments are kept without their factors 1 - beta: m = (1 - beta1) m', v = (1 - beta2) v'.
        of_m, of_v = 1 - self.beta1, math.sqrt(1 - self.beta2)
        if self.bias_correction == "standard":
            root = ops.sqrt(_one_minus_power(self.beta2, t))
            scaled, eps = rate * root / _one_minus_power(self.beta1, t), root * self.eps
        else:
            root = ops.sqrt(_one_minus_power(1 - self.beta2, t))
            scaled, eps = rate * root / _one_minus_power(1 - self.beta1, t), rate * 0.0 + self.eps
        scaled, eps = scaled * (of_m / of_v), eps * (1.0 / of_v)
        tree.map(lambda p, g, m, v: None, params, gradients, slots["m"], slots["v"])  # one form, or an error
        new = ops.adam_update(scaled, eps, *tree.leaves(params), *tree.leaves(gradients), *tree.leaves(slots["m"]),
                              *tree.leaves(slots["v"]), beta1=self.beta1, beta2=self.beta2, donate=self.donate)
        n = len(new) // 3
        parts = [tree.unflatten(params, list(new[i * n:(i + 1) * n])) for i in range(3)]
        return parts[0], {"m": parts[1], "v": parts[2], "step": step}


def _one_minus_power(beta: float, t: Tensor) -> Tensor:
    """1 - beta^t, exact for small t where 1 - exp(...) would cancel."""
    if beta == 0.0:
        return t * 0.0 + 1.0
    return -ops.expm1(t * math.log(beta))


def zeros_like(params: Params) -> Params:
    """Zeros in the form of the parameters."""
    return tree.map(lambda p: Tensor(p.backend.zeros(p.shape, p.dtype), p.backend), params)


# Clipping -------------------------------------------------------------------------------------------

def global_norm(gradients: Params) -> Tensor:
    """The Euclidean norm of all gradients together, as a 0-d tensor."""
    total: Tensor | None = None
    for g in tree.leaves(gradients):
        # A product and not a sum of squares: one pass over memory, without an array of squares.
        square = ops.matmul(ops.reshape(g, shape=(1, g.size)), ops.reshape(g, shape=(g.size, 1)))
        total = square if total is None else total + square
    if total is None:
        raise UsageError("[global_norm] expected gradients, found none")
    return ops.sqrt(ops.reshape(total, shape=()))


def clip_global_norm(limit: float) -> Clip:
    """All gradients scaled alike, so that their norm together is at most `limit` (Pascanu et al. 2013)."""
    _check_limit("clip_global_norm", limit)
    return scale_by_norm(lambda norm: _shrink(norm, limit))


def scale_by_norm(factor: Callable[[Tensor], Tensor]) -> Clip:
    """All gradients multiplied by `factor(norm)`, a 0-d tensor from the norm of all of them together."""
    def scale(gradients: Params) -> Params:
        by = factor(global_norm(gradients))
        return tree.map(lambda g: g * by, gradients)

    return scale


def clip_each_norm(limit: float) -> Clip:
    """Each gradient scaled on its own, so that its norm is at most `limit` (order-embedding's `maxnorm`)."""
    _check_limit("clip_each_norm", limit)
    return lambda gradients: tree.map(lambda g: g * _shrink(ops.sqrt(ops.sum(ops.square(g))), limit), gradients)


def clip_value(limit: float) -> Clip:
    """Each entry of each gradient kept within -limit .. limit."""
    _check_limit("clip_value", limit)
    return lambda gradients: tree.map(lambda g: ops.clip(g, -limit, limit), gradients)


def _shrink(norm: Tensor, limit: float) -> Tensor:
    return ops.minimum(limit / ops.maximum(norm, 1e-30), 1.0)


def _check_limit(name: str, limit: float) -> None:
    if not (np.isfinite(limit) and limit > 0):
        raise UsageError(f"[{name}] expected a finite limit above 0, found {limit}")
