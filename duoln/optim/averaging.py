"""The exponential moving average of parameters (Polyak and Juditsky 1992; with a decay, Tarvainen and Valpola 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from duoln import tree
from duoln.backends.protocol import STORAGE
from duoln.core.arguments import BELOW_1, check_number
from duoln.core.miscalled import explained
from duoln.errors import DtypeError
from duoln.ops.common import check_float
from duoln.optim.clipping import Params


@dataclass(frozen=True)
class MovingAverage:
    """The average <- decay average + (1 - decay) parameters, after each update.

        ema = optim.MovingAverage(0.999)
        average = ema.init(params)
        average = ema.update(average, params)       # after each update; evaluate with model(average, x)

    Raises:
        UsageError: the decay is not in [0, 1).
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        check_number("MovingAverage", "decay", self.decay, BELOW_1)

    @explained
    def init(self, params: Params) -> Params:
        """The first average, a copy of the parameters, which an optimiser with `donate` may overwrite.

        Raises:
            DtypeError: a leaf is not a tensor of floats, or has 16 bits, which would lose most of each change.
        """
        leaves = tree.leaves(params)
        check_float("MovingAverage", *leaves)
        narrow = next((leaf.dtype for leaf in leaves if leaf.dtype in STORAGE), None)
        if narrow:
            raise DtypeError(f"[MovingAverage] expected parameters of float32, found {narrow}")
        return tree.map(lambda p: p * 1.0, params)

    @explained
    def update(self, average: Params, params: Params) -> Params:
        """The next average. Raises ShapeError where the average has another form than the parameters."""
        return tree.map(lambda a, p: a * self.decay + p * (1 - self.decay), average, params)
