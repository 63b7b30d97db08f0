"""Adam on the CPU: in place if the arrays are donated."""

from __future__ import annotations

from typing import Any

import numpy as np

from duoln.backends.protocol import Array, Backend
from duoln.core import Rule
from duoln.ops import adam_update
from duoln.ops.update import are_apart, norm_of


def supports(be: Backend, rate: Array, eps: Array, scale: Array | None, keep: Array | None,
             *arrays: Array, **attrs: Any) -> str | None:
    """The reason why this rule cannot run; None if it can."""
    return None if all(a.flags.c_contiguous for a in arrays) else "an array is not contiguous"


def _forward(be: Backend, rate: Array, eps: Array, scale: Array | None, keep: Array | None,
             *arrays: Array, beta1: float, beta2: float, donate: bool) -> tuple[tuple[Array, ...], None]:
    n = len(arrays) // 4
    params, gradients, moments, squares = (arrays[i * n:(i + 1) * n] for i in range(4))
    norm = norm_of(be, gradients)
    old = [np.asarray(a) for a in (*params, *moments, *squares)]  # NumPy gives scalars, which cannot be written into
    in_place = donate and all(a.flags.writeable for a in old) and are_apart(old, gradients)
    new = old if in_place else [a.copy() for a in old]
    with np.errstate(under="ignore"):  # an update in place must not begin again
        for p, g, m, v in zip(new[:n], gradients, new[n:2 * n], new[2 * n:], strict=True):
            scaled = g if scale is None else g * scale
            np.add(beta1 * m, scaled, out=m)
            np.add(beta2 * v, scaled * scaled, out=v)
            np.subtract(p if keep is None else p * keep, rate * m / (np.sqrt(v) + eps), out=p)
    return (*new, norm), None


def attach() -> None:
    """Add the rule to `adam_update`."""
    adam_update.add(Rule("interpreted", _forward, supports=supports), backend="numpy")
