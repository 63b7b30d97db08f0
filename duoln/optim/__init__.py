"""Optimizers as pure functions over trees of tensors, with learning-rate schedules, clipping and averaging.

    optimizer = optim.Adam(learning_rate=1e-3)
    slots = optimizer.init(params)
    params, slots = optimizer.update(params, gradients, slots)

The rate is that of the optimizer, a number or a schedule; the slots count the updates. `rate=` gives another one, which
a compiled step takes as a 0-d tensor, because a number would become a constant of the step.
"""

from duoln.core.public_names import only_public
from duoln.core.pytorch_names import OF_OPTIM
from duoln.optim.adam import Adam, AdamW
from duoln.optim.averaging import Accumulate, MovingAverage
from duoln.optim.clipping import (
    Clip as Clip,
    clip_each_norm,
    clip_global_norm,
    clip_value,
    global_norm,
    scale_by_norm as scale_by_norm,
)
from duoln.optim.groups import Groups
from duoln.optim.optimizer import Optimizer
from duoln.optim.schedules import Schedule, cosine, exponential, linear_warmup, piecewise, schedule, steps
from duoln.optim.sgd import SGD, RMSProp

__all__ = [
    "SGD", "Accumulate", "Adam", "AdamW", "Groups", "MovingAverage", "Optimizer", "RMSProp",
    "Schedule", "clip_each_norm", "clip_global_norm", "clip_value", "cosine", "exponential", "global_norm",
    "linear_warmup", "piecewise", "schedule", "steps",
]
only_public(globals(), OF_OPTIM)
