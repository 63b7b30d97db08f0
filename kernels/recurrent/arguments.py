"""The arrays of a recurrent operator by name, so that rules need not know their positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duoln.backends.protocol import Array


class Arguments(NamedTuple):
    """The arrays of `rnn`, `gru` or `lstm`, or their gradients, in the operators' order."""

    x: Array | None
    """(T, B, in)."""
    states: tuple[Array | None, ...]
    """The states, (B, H) each."""
    w_x: Array | None
    w_h: Array | None
    bias: Array | None
    mask: Array | None
    """(T, B)."""
    norms: tuple[Array | None, ...]

    @classmethod
    def of(cls, arrays: Sequence[Array | None], states: int) -> Arguments:
        """The arguments from the arrays of an operator with this number of states."""
        w_x, w_h, bias, mask, *norms = arrays[1 + states:]
        return cls(arrays[0], tuple(arrays[1:1 + states]), w_x, w_h, bias, mask, tuple(norms))

    def flat(self) -> list[Array | None]:
        """The arrays in the operators' order."""
        return [self.x, *self.states, self.w_x, self.w_h, self.bias, self.mask, *self.norms]

    def of_rows(self, rows: slice) -> Arguments:
        """The arguments for some rows of the batch; all rows share the weights, the bias and the norms."""
        return self._replace(x=None if self.x is None else self.x[:, rows],
                             states=tuple(None if state is None else state[rows] for state in self.states),
                             mask=None if self.mask is None else self.mask[:, rows])
