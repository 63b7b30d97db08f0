"""Checks, before a rule is timed, that it computes the right values: against the composed rule, and in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.bench.subjects import RESULTS, Subject
from duoln.core import Tensor, composed_only
from duoln.errors import DuolnError
from duoln.kernels.registry import Shape

Values = Mapping[str, np.ndarray]
"""The results of a launch, on the host: "value", and each gradient under the name of its argument."""

_SAFETY = 64.0
_CHUNK_VALUES = 1 << 22
"""The float64 reference is computed in blocks of rows; a block has this many values."""
_TINY = 1e-30


def allowed(shape: Shape) -> float:
    """The largest difference, relative to the largest value, that rounding may make: 64 eps sqrt(n).

    n is how many values the longest sum adds up: a row for values, a column for the gradients of shared arguments.
    """
    return float(_SAFETY * np.finfo(np.float32).eps * np.sqrt(max(shape)))


def compute(subject: Subject, backend: Backend, inputs: Values, backward: bool) -> dict[str, np.ndarray]:
    """The results of one launch."""
    tensors = {name: Tensor(backend.asarray(a), backend) for name, a in inputs.items()}
    arrays = subject.run(tensors, tensors["gout"].data if backward else None)
    return {name: backend.to_numpy(a) for name, a in arrays.items()}


def difference(actual: Values, expected: Values) -> dict[str, float]:
    """For each array, the largest difference divided by the largest value; infinite where a value is not finite."""
    return {name: _relative(actual[name], exact, float(np.max(np.abs(exact)))) for name, exact in expected.items()}


def check_agreement(what: str, actual: Values, expected: Values, expected_of: str, limit: float) -> None:
    """Check the results of one side against those of another.

    Raises:
        DuolnError: they differ by more than rounding.
    """
    for name, off in difference(actual, expected).items():
        if not off <= limit:
            part = f"the {name}" if name in RESULTS else f"the gradient of {name}"
            raise DuolnError(f"[bench] {what}: {part} is {off:.2g} of its largest off {expected_of} (allowed "
                             f"{limit:.2g}); what computes something else is not timed")


def check_rule(what: str, subject: Subject, backend: Backend, inputs: Values, actual: Values, backward: bool) -> None:
    """Check the results of a fast rule against the composed rule on the same backend.

    Raises:
        DuolnError: they differ by more than rounding.
    """
    with composed_only():
        expected = compute(subject, backend, inputs, backward)
    rows, width = inputs["x"].shape
    check_agreement(what, actual, expected, "the composed rule", allowed((rows, width)))


def max_error(subject: Subject, backend: Backend, inputs: Values, actual: Values, backward: bool) -> float:
    """The largest difference from the composed rule in float64, relative to each array's largest value.

    CuPy computes it beside CuPy, because a GPU takes a second where a core of its host takes half a minute; else NumPy.
    """
    reference = backend if backend.name == "cupy" else runtime.backend("numpy")
    sums: dict[str, np.ndarray] = {}
    off: dict[str, float] = {}
    largest: dict[str, float] = {}
    for place, exact in _exact(subject, reference, inputs, backward):
        for name, values in exact.items():
            if name in subject.shared:
                sums[name] = sums[name] + values if name in sums else values
            else:
                largest[name] = max(largest.get(name, 0.0), float(np.max(np.abs(values))))
                off[name] = max(off.get(name, 0.0), _relative(actual[name][place], values, 1.0))
    by_row = {name: off[name] / max(largest[name], _TINY) for name in off}
    return max((by_row | difference(actual, sums)).values())


def _exact(subject: Subject, backend: Backend, inputs: Values, backward: bool,
           ) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
    rows, width = inputs["x"].shape
    step = max(_CHUNK_VALUES // width, 1)
    for start in range(0, rows, step):
        place = slice(start, min(start + step, rows))
        part = {name: a if name in subject.shared else a[place] for name, a in inputs.items()}
        wide = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in part.items()}
        with composed_only():
            yield place, compute(subject, backend, wide, backward)


def _relative(actual: np.ndarray, exact: np.ndarray, scale: float) -> float:
    off = float(np.max(np.abs(actual.astype(np.float64) - exact)))
    return off / max(scale, _TINY) if np.isfinite(off) else float("inf")
