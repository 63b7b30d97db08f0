"""The sum of images and a bias for each channel on the CPU, in long rows; BLAS computes the gradient of the bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.kernels.lines import Lines
from duoln.ops import add


def _supports(be: Backend, x: Array | float, y: Array | float) -> str | None:
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.ndim > 2 and y.shape == x.shape[-1:]):
        return "it is no bias of the last of three axes or more"
    return None if x.size else "there are no values"


def _forward(be: Backend, x: Array, y: Array) -> tuple[Array, Any]:
    lines = Lines(x.shape)
    rows = lines.of(x)
    return np.add(rows, lines.along(y), out=host.empty_like(rows)).reshape(x.shape), lines


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    lines: Lines = saved
    return [gout if needs[0] else None, lines.sums(lines.of(gout)) if needs[1] else None]


def attach() -> None:
    """Add the rule to `add`."""
    add.add(Rule("long rows", _forward, _vjp, _supports), backend="numpy")
