"""The cases of an update of many tensors, and of their common norm, which shares the kernels that read all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from duoln.kernels.registry import Arrays, Case, drawn, floats

Shapes = Sequence[tuple[int, ...]]
_MANY: Shapes = (*[(5,)] * 56, *[(0,)] * 56, *[(2, 3)] * 10)
"""More tensors than a launch takes; the second launch would have no values."""
_FEW: Shapes = ((3, 5), (), (20_001,))
_MODEL: Shapes = ((1000, 784), (1000,), (3,), (517, 33))
_SMALL: Shapes = ((3, 2), (1, 4), ())
_BOTH = (False, True)


def cases() -> Iterator[Case]:
    """The update, its rates and the norm, of few, of large and of many tensors."""
    for shapes in (((1,),), ((4095,), (4096,), (4097,)), _FEW, ((0,), (7,)), _MANY):
        for scaled, decayed in itertools.product(_BOTH, repeat=2):
            is_of_net = (shapes is _FEW or shapes is _MANY) and scaled is not decayed
            yield _update(shapes, scaled, decayed)._replace(net=is_of_net)
    yield _update(_SMALL, False, False)._replace(layouts=True)
    for scaled in _BOTH:
        yield _update(_MODEL, scaled, not scaled).on_gpu()
    for beta1, bias_correction, updates in ((0.9, "standard", 0), (0.9, "kiros2015", 3), (0.0, "standard", 1),
                                            (0.5, "standard", 100_000)):
        yield _rates(beta1, bias_correction, updates)._replace(net=updates < 10)
    for shapes in (((1,),), ((8191,), (8192, 1), (8193,)), ((3, 5), (), (0, 2), (20_001,)), _MANY):
        yield _norm(shapes)._replace(net=shapes is _MANY)
    yield _norm(_SMALL)._replace(layouts=True)
    yield _norm(_FEW).on_gpu(net=True)
    yield _norm(_MODEL).on_gpu()


def _listed(shapes: Shapes) -> str:
    return f"{len(shapes)} tensors" if shapes is _MANY else " and ".join(str(s) for s in shapes)


def _update(shapes: Shapes, scaled: bool, decayed: bool) -> Case:
    """An update whose gradients are scaled, or whose parameters are decayed."""
    def arrays() -> Arrays:
        rng = np.random.default_rng(len(shapes))
        params, gradients, moments, squares = ([floats(rng, *s) for s in shapes] for _ in range(4))
        rate, eps, scale, keep = (np.array(value, np.float32) for value in (0.1, 1e-3, 0.3, 0.9))
        return (rate, eps, scale if scaled else None, keep if decayed else None, *params, *gradients, *moments,
                *(np.abs(s) for s in squares))

    return Case("adam_update", _listed(shapes) + ", scaled" * scaled + ", decayed" * decayed, arrays,
                {"beta1": 0.9, "beta2": 0.999, "donate": False}, max(prod(s) for s in shapes))


def _rates(beta1: float, bias_correction: str, updates: int) -> Case:
    return Case("adam_rates", f"{bias_correction}, beta1 {beta1}, after {updates}",
                lambda: (np.array(0.1, np.float32), np.array(updates, np.int32)),
                {"beta1": beta1, "beta2": 0.999, "eps": 1e-8, "bias_correction": bias_correction}, 1)


def _norm(shapes: Shapes) -> Case:
    return Case("global_norm", _listed(shapes), drawn(*shapes, seed=len(shapes)), {}, max(prod(s) for s in shapes))
