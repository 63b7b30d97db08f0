"""Means: of the gradients of several batches, for one update, and of the parameters after each update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from duoln import ops, tree
from duoln.core import Tensor
from duoln.core.arguments import AT_LEAST_0, BELOW_1, check_number, described
from duoln.core.spec import check_float, check_tensors
from duoln.errors import DtypeError, ShapeError
from duoln.ops.common import check_not_16_bits
from duoln.optim.clipping import Params

Sums = dict[str, Any]


@dataclass(frozen=True)
class Accumulate:
    """The mean of the gradients of several batches, sum(weight * gradient) / sum(weight), for one update.

    A batch whose loss is a mean over n entries has the weight n: the mean is then the gradient of all batches as one.
    Batches of equal sizes need no weights. Where the entries are the tokens that are not padding, their number differs
    from batch to batch, and a mean without weights is not that gradient.

        accumulate = optim.Accumulate()

        @duoln.compile
        def add(sums, params, masks, batch):
            value, gradients = duoln.value_and_grad(loss)(params, masks, batch)
            return accumulate.add(sums, gradients, ops.sum(batch["label"] != -1)), value

        @duoln.compile
        def update(params, slots, sums):
            return optimizer.update(params, accumulate.mean(sums), slots)

        sums = accumulate.init(params)      # before the first of each update's batches

    The masks of dropout are those of a batch, not of an update: `dropout(batch_number, params, x)`. The sums are new
    tensors, so an optimizer with `donate` may overwrite its parameters. `clip` of an optimizer clips the mean.
    """

    def init(self, params: Params) -> Sums:
        """Sums of no gradients: `{"gradients": ..., "weight": ...}`, in float32 where a parameter has 16 bits.

        Raises:
            DtypeError: a leaf is not a tensor of floats, or there are none.
        """
        leaves = tree.leaves(params)
        if not leaves:
            raise DtypeError("[Accumulate] expected parameters, found none")
        check_float("Accumulate", *leaves)
        wide = "float64" if leaves[0].dtype == "float64" else "float32"
        return {"gradients": tree.map(lambda p: ops.zeros(p.shape, p.backend, wide), params),
                "weight": ops.zeros((), leaves[0].backend, wide)}

    def add(self, sums: Sums, gradients: Params, weight: Tensor | float = 1.0) -> Sums:
        """The sums with the gradients of one more batch, which counts by its weight, a number or a 0-d tensor.

        Raises:
            ShapeError: the gradients have another form than the parameters, or the weight has axes.
            DtypeError: a leaf is not a tensor. UsageError: the weight is a number below 0.
        """
        before = _part(sums, "weight")
        check_tensors("Accumulate", before, *tree.leaves(gradients))
        if not isinstance(weight, Tensor):
            number = check_number("Accumulate", "weight", weight, AT_LEAST_0)
            weight = ops.full((), number, before.backend, before.dtype)
        check_tensors("Accumulate", before, weight)
        if weight.shape != ():
            raise ShapeError(f"[Accumulate] weight: expected a number or a 0-d tensor, found shape {weight.shape}")
        by = weight.astype(before.dtype)
        return {"gradients": tree.map(lambda total, g: total + g * by, _part(sums, "gradients"), gradients),
                "weight": before + by}

    def mean(self, sums: Sums) -> Params:
        """The gradients of the update; zeros if no entry counted."""
        weight = _part(sums, "weight")
        check_tensors("Accumulate", weight)
        by = 1.0 / ops.where(weight == 0.0, 1.0, weight)
        return tree.map(lambda total: total * by, _part(sums, "gradients"))


def _part(sums: Sums, name: str) -> Any:
    if not isinstance(sums, dict) or name not in sums:
        raise ShapeError(f"[Accumulate] sums: expected those of init and add, found {described(sums)}")
    return sums[name]


@dataclass(frozen=True)
class MovingAverage:
    """The average <- average + (1 - beta) (parameters - average), after each update.

    It is exponential (Polyak and Juditsky 1992; with a beta, Tarvainen and Valpola 2017).
    In this form the average of parameters that stay is those parameters, to the bit. A change below half a unit in the
    last place of the average is lost: in float32 the average stops up to 6e-8 / (1 - beta) of its size away from
    parameters that hold still, 6e-5 at 0.999.

        ema = optim.MovingAverage(0.999)
        average = ema.init(params)
        average = ema.update(average, params)       # after each update; evaluate with model(average, x)

    Raises:
        UsageError: beta is not in [0, 1).
    """

    beta: float = 0.999

    def __post_init__(self) -> None:
        check_number("MovingAverage", "beta", self.beta, BELOW_1)

    def init(self, params: Params) -> Params:
        """The first average, a copy of the parameters, which an optimizer with `donate` may overwrite.

        Raises:
            DtypeError: a leaf is not a tensor of floats, or has 16 bits, which would lose most of each change.
        """
        _check(params)
        return tree.map(lambda p: p * 1.0, params)

    def update(self, average: Params, params: Params) -> Params:
        """The next average.

        Raises:
            ShapeError: the average has another form than the parameters. DtypeError: as `init`, for the average.
        """
        _check(average)
        return tree.map(lambda a, p: a + (p - a) * (1 - self.beta), average, params)


def _check(average: Params) -> None:
    leaves = tree.leaves(average)
    check_float("MovingAverage", *leaves)
    check_not_16_bits("MovingAverage", "parameters", *leaves)
