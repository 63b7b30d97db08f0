"""The exponential moving average of parameters (Polyak and Juditsky 1992; with a beta, Tarvainen and Valpola 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from duoln import tree
from duoln.core.arguments import BELOW_1, check_number
from duoln.core.spec import check_float
from duoln.ops.common import check_not_16_bits
from duoln.optim.clipping import Params


@dataclass(frozen=True)
class MovingAverage:
    """The average <- average + (1 - beta) (parameters - average), after each update.

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
