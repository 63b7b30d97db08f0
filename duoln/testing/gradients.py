"""Gradients against central differences along random directions, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from duoln import tree
from duoln.backends.protocol import REALS, Array
from duoln.core.arguments import check_function
from duoln.core.gradient import pullback_at, tensors_of
from duoln.core.tensor import Tensor
from duoln.errors import DtypeError, GradientError
from duoln.nn.dropout import no_dropout


def projected_gradients(fn: Callable[..., Any], args: Sequence[Any], places: Sequence[int], rng: np.random.Generator,
                        ) -> tuple[list[Array], list[np.ndarray | None]]:
    """The gradients of sum(w * fn(*args)) with respect to the arguments at `places`, float tensors.

    Returns:
        The gradients, and the weights w: standard normal for each float output, and None for another one.
    """
    first = args[places[0]]
    outputs, back, tape = pullback_at(places, fn, args)
    outs = tensors_of(outputs)
    weights = [rng.standard_normal(o.shape) if o.dtype in REALS else None for o in outs]
    try:
        return back([None if w is None else first.backend.asarray(w, out.dtype)
                     for w, out in zip(weights, outs, strict=True)]), weights
    finally:
        tape.close()


def gradcheck(fn: Callable[..., Any], *args: Any, rtol: float = 1e-6, step: float = 1e-6, seed: int = 0) -> float:
    """Check the gradient of `fn(*args)` with respect to every float64 tensor in the arguments, which may be trees.

        params = duoln.init(model, 0, "numpy", dtype="float64")
        duoln.testing.gradcheck(lambda p, x: model(p, x), params, x)

    For each such tensor, a random direction d and random weights w over the outputs are drawn. The derivative of
    sum(w * fn) along d is compared with its central difference, so the cost does not grow with the size. All other
    values are constants. Dropout has no masks in it.

    Returns:
        The greatest relative error seen.

    Raises:
        GradientError: an error is above `rtol`; the message names the argument.
        DtypeError: a tensor is float32, or none is float64; differences in float32 are too inexact for this check.
    """
    check_function("gradcheck", "fn", fn)
    paths, values = zip(*tree.items(list(args)), strict=True) if tree.leaves(list(args)) else ((), ())
    checked = [i for i, a in enumerate(values) if isinstance(a, Tensor) and a.dtype in REALS]
    if not checked or any(values[i].dtype != "float64" for i in checked):
        dtypes = sorted({values[i].dtype for i in checked})
        raise DtypeError(f"[gradcheck] expected float64 tensors, found {', '.join(dtypes) or 'no float tensor'}")
    backend = values[checked[0]].backend
    rng = np.random.default_rng(seed)

    def flat(*leaves: Any) -> Any:
        with no_dropout():
            return fn(*tree.unflatten(list(args), leaves))

    gradients, weights = projected_gradients(flat, values, checked, rng)

    def projected(index: int, moved: np.ndarray) -> float:
        outputs = tensors_of(flat(*values[:index], Tensor(backend.asarray(moved), backend), *values[index + 1:]))
        return float(sum(np.sum(w * v.numpy()) for w, v in zip(weights, outputs, strict=True) if w is not None))

    worst = 0.0
    for index, gradient in zip(checked, gradients, strict=True):
        x = values[index].numpy()
        if x.size == 0:
            continue
        direction = rng.standard_normal(x.shape)
        terms = backend.to_numpy(gradient) * direction
        analytic = float(np.sum(terms))
        upper, lower = projected(index, x + step * direction), projected(index, x - step * direction)
        numeric = (upper - lower) / (2 * step)
        # The scale also counts the size of the terms: where they cancel, rounding is large beside their sum.
        scale = max(abs(analytic), abs(numeric), float(np.linalg.norm(terms)))
        noise = 4 * np.finfo(np.float64).eps * (abs(upper) + abs(lower)) / step
        error = max(abs(analytic - numeric) - noise, 0.0) / max(scale, 1e-12)
        if not error <= rtol:
            place, _, inside = paths[index].partition(".")
            argument = f"argument {place}{f', {inside!r},' if inside else ''}"
            raise GradientError(f"[gradcheck] {argument} of shape {x.shape}: expected a derivative of "
                                f"{numeric:.12g}, found {analytic:.12g} (relative error {error:.2g} > {rtol:g})")
        worst = max(worst, error)
    return worst
