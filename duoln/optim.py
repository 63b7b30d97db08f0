"""Optimisers as pure functions over trees of tensors.

    optimizer = optim.Adam(learning_rate=1e-3)
    slots = optimizer.init(params)
    params, slots = optimizer.update(params, gradients, slots, rate)

`rate` is a number or a 0-d tensor. A compiled step takes it as a tensor, because a number would become a constant of
the step. Slots have the form of the parameters.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Never, Self

from duoln import ops, tree
from duoln.core import Tensor
from duoln.core.arguments import (
    ABOVE_0,
    AT_LEAST_0,
    BELOW_1,
    EPSILON,
    check_choice,
    check_flag,
    check_function,
    check_integer,
    check_number,
    described,
)
from duoln.core.miscalled import explained, wrong_call
from duoln.core.pytorch_names import OF_OPTIM, OF_OPTIMIZERS, how_to_name, name_missing, present_names, unknown_name
from duoln.errors import CallError, DtypeError, ShapeError, UsageError
from duoln.ops.common import check_tensors

Params = Any
Schedule = Callable[[int], float]
Clip = Callable[[Params], Params]


@dataclass(frozen=True)
class Optimizer:
    """The base class: it has a learning rate, which is a number or a function of the step, and may clip gradients.

    With `donate`, `update` may overwrite its parameters and slots. A view of a parameter, such as a slice that a loss
    returned beside its value, then holds the values after the update; `copy.deepcopy` of it keeps those before. So does
    a thread that saves parameters while training goes on.
    """

    learning_rate: float | Schedule
    clip: Clip | None = None
    donate: bool = False

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        names = [f.name for f in fields(cls)] if is_dataclass(cls) else list(settings)
        for name in settings.keys() - set(names):
            raise CallError(f"[{cls.__name__}] expected settings of {', '.join(names)}, found {name!r}"
                            f"{how_to_name(name, names)}")
        if args and isinstance(args[0], dict | list | tuple):
            raise DtypeError(f"[{cls.__name__}] learning_rate: expected a number or a function of the update, found "
                             f"{described(args[0])}; parameters go to init(params) and update(params, ...)")
        if args or settings:  # a copy is made without
            signature = inspect.signature(cls)
            try:
                signature.bind(*args, **settings)
            except TypeError:
                raise wrong_call(cls.__name__, signature, args, settings) from None
        return super().__new__(cls)

    def __dir__(self) -> list[str]:
        return present_names(self, super().__dir__())

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not callable(self.learning_rate):
            check_number(kind, "learning_rate", self.learning_rate, AT_LEAST_0)
        if isinstance(self.clip, int | float):
            raise DtypeError(f"[{kind}] clip: expected a function of the gradients, found {described(self.clip)}; "
                             f"optim.clip_global_norm({self.clip!r:.20}) is one, as clip_each_norm and clip_value are")
        if self.clip is not None:
            check_function(kind, "clip", self.clip)
        check_flag(kind, "donate", self.donate)

    @explained
    def rate_at(self, step: int) -> float:
        """The learning rate of the update numbered `step`, from 0.

        Raises:
            DtypeError: the number is not an integer, or the rate is not a number. ShapeError: the number is below 0.
            UsageError: the rate is below 0.
        """
        step = check_integer("optim", "step", step, 0)
        rate = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        return float(check_number("optim", f"the learning rate at step {step}", rate, AT_LEAST_0))

    @explained
    def init(self, params: Params) -> dict[str, Any]:
        """The initial slots."""
        return {}

    @explained
    def update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor | float,
               ) -> tuple[Params, dict[str, Any]]:
        """New parameters and slots.

        Raises:
            ShapeError: gradients or slots have another form than the parameters, or the rate has axes.
            DtypeError: a leaf is not a tensor, or the rate is not a number. UsageError: the rate is below 0.
        """
        checked = self._checked(params, gradients, slots, rate)
        if checked is None:
            return params, slots
        return self._update(params, self.clip(gradients) if self.clip else gradients, slots, checked)

    @explained
    def update_with_norm(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor | float,
                         ) -> tuple[Params, dict[str, Any], Tensor]:
        """As `update`, with the common norm of all gradients before they are clipped.

        Raises:
            UsageError: there are no gradients. The rest as `update`.
        """
        norm = global_norm(gradients)  # before the update, because that may overwrite its arguments
        return (*self.update(params, gradients, slots, rate), norm)

    def _checked(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor | float,
                 ) -> Tensor | None:
        """The rate as a tensor, after the checks of `update`; None if it is a number and there are no parameters."""
        name = type(self).__name__
        leaves = tree.leaves(params)
        check_tensors(name, *leaves, *tree.leaves(gradients))
        if not isinstance(rate, Tensor):
            if callable(rate):
                raise DtypeError(f"[{name}] rate: expected a number or a 0-d tensor, found {described(rate)}; give "
                                 "optimizer.rate_at(update)")
            number = check_number(name, "rate", rate, AT_LEAST_0)
            if not leaves:
                return None
            rate = ops.full((), number, leaves[0].backend, leaves[0].dtype)
        check_tensors(name, rate, *leaves)
        if rate.shape != ():
            raise ShapeError(f"[{name}] rate: expected a number or a 0-d tensor, found shape {rate.shape}")
        if not isinstance(slots, dict):
            raise DtypeError(f"[{name}] slots: expected a dict, found {described(slots)}")
        return rate

    def _update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                ) -> tuple[Params, dict[str, Any]]:
        raise TypeError(f"{type(self).__name__} does not define an update")


name_missing(Optimizer, OF_OPTIMIZERS)


@dataclass(frozen=True)
class SGD(Optimizer):
    """p <- p - rate * velocity, velocity <- momentum * velocity + g (Sutskever et al. 2013, with Nesterov's form)."""

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("SGD", "momentum", self.momentum, BELOW_1)
        check_flag("SGD", "nesterov", self.nesterov)

    @explained
    def init(self, params: Params) -> dict[str, Any]:
        return {"velocity": zeros_like(params)} if self.momentum else {}

    def _update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                ) -> tuple[Params, dict[str, Any]]:
        if not self.momentum:
            return tree.map(lambda p, g: p - g * rate, params, gradients), {}
        velocity = tree.map(lambda v, g: v * self.momentum + g, _slot("SGD", slots, "velocity"), gradients)
        step = tree.map(lambda v, g: v * self.momentum + g, velocity, gradients) if self.nesterov else velocity
        return tree.map(lambda p, s: p - s * rate, params, step), {"velocity": velocity}


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """p <- p - rate * g / (sqrt(s) + eps), s <- decay * s + (1 - decay) * g^2 (Tieleman and Hinton 2012)."""

    decay: float = 0.9
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("RMSProp", "decay", self.decay, BELOW_1)
        check_number("RMSProp", "eps", self.eps, EPSILON)

    @explained
    def init(self, params: Params) -> dict[str, Any]:
        return {"square": zeros_like(params)}

    def _update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                ) -> tuple[Params, dict[str, Any]]:
        before = _slot("RMSProp", slots, "square")
        square = tree.map(lambda s, g: s * self.decay + g * g * (1 - self.decay), before, gradients)
        new = tree.map(lambda p, g, s: p - g * rate / (ops.sqrt(s) + self.eps), params, gradients, square)
        return new, {"square": square}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1).

    `bias_correction="kiros2015"` is the correction in the code of the paper's order-embedding and skip-thoughts
    experiments: it divides by 1 - 0.1^t and 1 - 0.001^t and does not correct epsilon, so that early updates are up to
    6.6 times larger than Adam's.

    The slots m and v hold the moments divided by 1 - beta1 and 1 - beta2. A gradient beyond 1e19, whose square float32
    does not hold, stops its parameter for good; a clip by the norm prevents that.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    bias_correction: Literal["standard", "kiros2015"] = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("Adam", "bias_correction", self.bias_correction, ("standard", "kiros2015"))
        check_number("Adam", "eps", self.eps, EPSILON)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            check_number("Adam", name, beta, BELOW_1)

    @explained
    def init(self, params: Params) -> dict[str, Any]:
        leaves = tree.leaves(params)
        if not leaves:
            raise UsageError("[Adam] expected parameters, found none")
        check_tensors("Adam", *leaves)
        backend = leaves[0].backend
        return {"m": zeros_like(params), "v": zeros_like(params),
                "step": ops.zeros((), backend, "int32")}

    def _update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                ) -> tuple[Params, dict[str, Any]]:
        return self._scaled_update(params, gradients, slots, rate, None)[:2]

    def update_with_norm(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor | float,
                         ) -> tuple[Params, dict[str, Any], Tensor]:
        if self.clip is not None and not isinstance(self.clip, ScaleByNorm):
            return super().update_with_norm(params, gradients, slots, rate)
        checked = self._checked(params, gradients, slots, rate)
        if checked is None:
            return params, slots, global_norm(gradients)
        if self.clip is None:
            # The pass over the gradients that updates the parameters adds up their squares too.
            return self._scaled_update(params, gradients, slots, checked, None)
        norm = global_norm(gradients)
        return (*self._scaled_update(params, gradients, slots, checked, self.clip.scale_of(norm))[:2], norm)

    def _scaled_update(self, params: Params, gradients: Params, slots: dict[str, Any], rate: Tensor,
                       scale: Tensor | None) -> tuple[Params, dict[str, Any], Tensor]:
        moments = _slot("Adam", slots, "m"), _slot("Adam", slots, "v")
        scaled, eps, step = ops.adam_rates(rate, _slot("Adam", slots, "step"), beta1=self.beta1, beta2=self.beta2,
                                           eps=self.eps, bias_correction=self.bias_correction)
        columns = zip(*tree.zipped(params, gradients, *moments), strict=True)
        *new, norm = ops.adam_update(scaled, eps, scale, *itertools.chain.from_iterable(columns),
                                     beta1=self.beta1, beta2=self.beta2, donate=self.donate)
        n = len(new) // 3
        parts = [tree.unflatten(params, new[i * n:(i + 1) * n]) for i in range(3)]
        return parts[0], {"m": parts[1], "v": parts[2], "step": step}, norm


def _slot(name: str, slots: dict[str, Any], key: str) -> Any:
    """A slot. The error for a missing slot names the optimiser and the slot."""
    if key not in slots:
        raise ShapeError(f"[{name}] slots: expected '{key}', found {', '.join(map(str, slots)) or 'none'}")
    return slots[key]


@explained
def zeros_like(params: Params) -> Params:
    """Zeros in the form of the parameters. Raises DtypeError for a leaf that is not a tensor."""
    check_tensors("zeros_like", *tree.leaves(params))
    return tree.map(ops.zeros_like, params)


# Clipping -------------------------------------------------------------------------------------------

@explained
def global_norm(gradients: Params) -> Tensor:
    """The Euclidean norm of all gradients together, as a 0-d tensor."""
    return ops.global_norm(*tree.leaves(gradients))


@dataclass(frozen=True)
class ScaleByNorm:
    """Multiplies all gradients by `scale_of(norm)`. Adam does so while it reads them, without a pass of its own."""

    scale_of: Callable[[Tensor], Tensor]
    """Of the common norm of all gradients; both are 0-d tensors."""

    def __post_init__(self) -> None:
        check_function("scale_by_norm", "scale_of", self.scale_of)

    def __call__(self, gradients: Params) -> Params:
        by = self.scale_of(global_norm(gradients))
        return tree.map(lambda g: g * by, gradients)


@explained
def clip_global_norm(limit: float) -> Clip:
    """Scale all gradients by one number, so that their common norm is at most `limit` (Pascanu et al. 2013)."""
    _check_limit("clip_global_norm", limit)
    return scale_by_norm(_Shrink(limit))


@explained
def scale_by_norm(scale_of: Callable[[Tensor], Tensor]) -> Clip:
    """Multiply all gradients by `scale_of(norm)`, a 0-d tensor; `norm` is the common norm of all gradients."""
    return ScaleByNorm(scale_of)


@explained
def clip_each_norm(limit: float) -> Clip:
    """Scale each gradient separately, so that its norm is at most `limit` (order-embedding's `maxnorm`)."""
    _check_limit("clip_each_norm", limit)
    return _ClipEachNorm(limit)


@explained
def clip_value(limit: float) -> Clip:
    """Clip each entry of each gradient to -limit .. limit."""
    _check_limit("clip_value", limit)
    return _ClipValue(limit)


# These are classes, not closures, so that an optimiser can be pickled, and equals its copy.

@dataclass(frozen=True)
class _Shrink:
    """The number by which gradients of a norm are multiplied, so that their norm is at most `limit`."""

    limit: float

    def __call__(self, norm: Tensor) -> Tensor:
        return self.limit / ops.maximum(norm, self.limit)


@dataclass(frozen=True)
class _ClipEachNorm:
    limit: float

    def __call__(self, gradients: Params) -> Params:
        return tree.map(lambda g: g * _Shrink(self.limit)(ops.vector_norm(g)), gradients)


@dataclass(frozen=True)
class _ClipValue:
    limit: float

    def __call__(self, gradients: Params) -> Params:
        return tree.map(lambda g: ops.clip(g, -self.limit, self.limit), gradients)


def _check_limit(name: str, limit: float) -> None:
    check_number(name, "limit", limit, ABOVE_0)


def __getattr__(name: str) -> Never:
    raise unknown_name("duoln.optim", name, OF_OPTIM, globals())
