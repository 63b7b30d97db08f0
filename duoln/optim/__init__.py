"""Optimizers as pure functions over trees of tensors, with learning-rate schedules, clipping and averaging.

    optimizer = optim.Adam(learning_rate=1e-3)
    slots = optimizer.init(params)
    params, slots = optimizer.update(params, gradients, slots, rate)

`rate` is a number or a 0-d tensor. A compiled step takes it as a tensor, because a number would become a constant of
the step. Slots have the form of the parameters.
"""

from typing import Never

from duoln.core.pytorch_names import OF_OPTIM, unknown_name, without_modules
from duoln.optim.accumulating import Accumulate
from duoln.optim.adam import Adam, AdamW
from duoln.optim.averaging import MovingAverage
from duoln.optim.clipping import (
    Clip,
    ScaleByNorm,
    clip_each_norm,
    clip_global_norm,
    clip_value,
    global_norm,
    scale_by_norm,
)
from duoln.optim.optimizer import Optimizer, Schedule, zeros_like
from duoln.optim.schedules import cosine, linear_warmup, piecewise
from duoln.optim.sgd import SGD, RMSProp

__all__ = [
    "SGD", "Accumulate", "Adam", "AdamW", "Clip", "MovingAverage", "Optimizer", "RMSProp", "ScaleByNorm",
    "Schedule", "clip_each_norm", "clip_global_norm", "clip_value", "cosine", "global_norm", "linear_warmup",
    "piecewise", "scale_by_norm", "zeros_like",
]
without_modules(globals(), OF_OPTIM)


def __getattr__(name: str) -> Never:
    raise unknown_name("duoln.optim", name, OF_OPTIM, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
