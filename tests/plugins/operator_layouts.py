"""The operators with a fused rule that one experiment alone uses, at sizes that take no time: for the table of layouts."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import numpy as np

from duoln.extend import Case
from duoln.plugins.draw import ops as draw_ops
from duoln.plugins.order_embeddings import ops as order_ops

LEAST = {"gaussian_latent": 20, "order_violation": 170, "write_then_read": 150}
"""How many layouts there are of each operator's cases at least."""


def _floats(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def _glimpses() -> list[Case]:
    rng = np.random.default_rng(2)
    cases = []
    for batch, pixels, read, write in ((3, 6, 2, 3), (1, 7, 3, 2)):
        looked = [0.5 * a for a in _floats(rng, (batch, 10 + write * write))]
        arrays = _floats(rng, (batch, pixels, pixels), (batch, pixels, pixels))
        cases.append(Case("write_then_read", f"{batch} {pixels}", partial(list, [*arrays, *looked]),
                          {"read": read, "write": write, "centre": "edge"}, 1000))
    return cases


def _latent() -> list[Case]:
    rng = np.random.default_rng(3)
    return [Case("gaussian_latent", f"{batch} {width}", partial(list, _floats(rng, (batch, 2 * width), (batch, width))), {}, 20)
            for batch, width in ((3, 5), (1, 4), (4, 1))]


def _violations() -> list[Case]:
    rng = np.random.default_rng(1)
    return [Case("order_violation", f"{captions} {images} {width}",
                 partial(list, _floats(rng, (captions, width), (images, width))), {}, 20)
            for captions, images, width in ((4, 3, 5), (1, 3, 2), (3, 1, 4), (2, 3, 1))]


def layout_cases() -> list[tuple[Case, ModuleType]]:
    """Every case, with the module that has its operator."""
    return [*((case, draw_ops) for case in [*_glimpses(), *_latent()]), *((case, order_ops) for case in _violations())]
