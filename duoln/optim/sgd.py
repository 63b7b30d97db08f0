"""Optimizers of a few operators: SGD with momentum, and RMSProp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from duoln import ops, tree
from duoln.core import Tensor
from duoln.core.arguments import AT_LEAST_0, BELOW_1, EPSILON, check_flag, check_function, check_number
from duoln.optim.clipping import Params
from duoln.optim.optimizer import Decays, Optimizer, decaying, slot


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """p <- p - rate * velocity, velocity <- momentum * velocity + g (Sutskever et al. 2013, with Nesterov's form).

        >>> optimizer = optim.SGD(learning_rate=0.1, momentum=0.9)
        >>> params = {"w": duoln.tensor([1.0])}
        >>> slots = optimizer.init(params)
        >>> gradients = {"w": duoln.tensor([2.0])}
        >>> params, slots = optimizer.update(params, gradients, slots)
        >>> round(params["w"].item(), 3)
        0.8

    Attributes:
        learning_rate: a number, or a function of the update such as `optim.cosine(...)`; `rate_at` gives its values.
        clip: a function applied to the gradients first, such as `optim.clip_global_norm(1.0)`, or None.
        donate: let `update` overwrite its parameters and slots, see `Optimizer`.
        momentum: the share of the velocity that stays, in [0, 1).
        nesterov: add the gradient once more to the velocity in the step of the parameters.
        weight_decay: at least 0; weight_decay * p is added to a gradient after it is clipped.
        decays: `decays(path, parameter)` says which parameters decay, see `AdamW`.
    """

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    decays: Decays | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("SGD", "momentum", self.momentum, BELOW_1)
        check_flag("SGD", "nesterov", self.nesterov)
        check_number("SGD", "weight_decay", self.weight_decay, AT_LEAST_0)
        if self.decays is not None:
            check_function("SGD", "decays", self.decays)

    def start(self, params: Params) -> dict[str, Any]:
        return {"velocity": tree.map(ops.zeros_like, params)} if self.momentum else {}

    def apply(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
              ) -> tuple[Params, dict[str, Any]]:
        if self.weight_decay:
            rows = zip(decaying(params, self.decays), tree.zipped(params, gradients), strict=True)
            gradients = tree.unflatten(gradients, [g + p * self.weight_decay if falls else g for falls, (p, g) in rows])
        if not self.momentum:
            return tree.map(lambda p, g: p - g * rate, params, gradients), {}
        velocity = tree.map(lambda v, g: v * self.momentum + g, slot("SGD", slots, "velocity"), gradients)
        step = tree.map(lambda v, g: v * self.momentum + g, velocity, gradients) if self.nesterov else velocity
        return tree.map(lambda p, s: p - s * rate, params, step), {"velocity": velocity}


@dataclass(frozen=True, kw_only=True)
class RMSProp(Optimizer):
    """p <- p - rate * g / (sqrt(s) + eps), s <- beta * s + (1 - beta) * g^2 (Tieleman and Hinton 2012).

    The mean square is computed as s + (1 - beta) (g^2 - s), which does not drift. A gradient beyond 1e19, whose square
    float32 does not hold, makes its parameter NaN; a clip by the norm prevents that.

    Attributes:
        learning_rate: a number, or a function of the update such as `optim.cosine(...)`; `rate_at` gives its values.
        clip: a function applied to the gradients first, such as `optim.clip_global_norm(1.0)`, or None.
        donate: let `update` overwrite its parameters and slots, see `Optimizer`.
        beta: the share of the mean square that stays, in [0, 1).
        eps: a number added to the root.
    """

    beta: float = 0.9
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("RMSProp", "beta", self.beta, BELOW_1)
        check_number("RMSProp", "eps", self.eps, EPSILON)

    def start(self, params: Params) -> dict[str, Any]:
        return {"square": tree.map(ops.zeros_like, params)}

    def apply(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
              ) -> tuple[Params, dict[str, Any]]:
        before = slot("RMSProp", slots, "square")
        square = tree.map(lambda s, g: s + (g * g - s) * (1 - self.beta), before, gradients)
        new = tree.map(lambda p, g, s: p - g * rate / (ops.sqrt(s) + self.eps), params, gradients, square)
        return new, {"square": square}
