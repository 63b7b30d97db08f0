"""Which norms the text of this folder is compiled for, as plain data."""

from __future__ import annotations

from typing import NamedTuple


class Norm(NamedTuple):
    """For which norm the source is compiled; see variant.h."""

    centred: bool = True
    """Whether the mean is subtracted."""
    residual: bool = False
    """Whether the rows are sums of two arrays."""

    @property
    def stats(self) -> int:
        """The floats of a row that are kept for the gradient."""
        return 3 if self.centred else 1

    @property
    def macros(self) -> dict[str, int]:
        """Those that differ from their defaults."""
        return {**({} if self.centred else {"CENTRED": 0}), **({"RESIDUAL": 1} if self.residual else {})}


LAYER, RMS = Norm(), Norm(centred=False)
