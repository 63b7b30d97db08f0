"""Order violation on the CPU: each caption is compared with a tile of images that stays in cache.

No array holds the differences of all pairs. The gradient computes them again, only for the pairs that have a
gradient: with a margin loss, most pairs of a trained model have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from duoln.extend import Array, Backend, Rule, host

_TILE_BYTES = 1 << 18
"""A tile of images and the differences from one caption stay in L2 together."""


def _tiles(first: int, last: int, images: Array) -> list[slice]:
    rows = max(_TILE_BYTES // (images.shape[1] * images.itemsize), 1)
    return [slice(a, min(a + rows, last)) for a in range(first, last, rows)]


def _above(caption: Array, images: Array) -> Array:
    """max(0, caption - image), in scratch of this thread."""
    above = host.scratch("above", images.size, images.dtype).reshape(images.shape)
    np.subtract(caption, images, above)
    return np.maximum(above, 0.0, out=above)


def _forward(be: Backend, captions: Array, images: Array) -> tuple[Array, tuple[Array, Array]]:
    errors = np.empty((len(captions), len(images)), captions.dtype)

    def work(first: int, last: int) -> None:
        for tile in _tiles(first, last, images):
            for i, caption in enumerate(captions):
                above = _above(caption, images[tile])
                np.vecdot(above, above, out=errors[i, tile])

    host.over_rows(len(images), captions.size * images.itemsize, work)
    return errors, (captions, images)


def _vjp(be: Backend, saved: tuple[Array, Array], gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    captions, images = saved
    of_images = np.zeros_like(images)
    parts = host.independent_workers() if captions.size * len(images) * images.itemsize >= host.PARALLEL_BYTES else 1
    bounds = pairwise(len(images) * k // parts for k in range(parts + 1))

    def part(first: int, last: int) -> Array:
        """Add to the gradient of some images; theirs to the gradient of all captions."""
        of_captions = np.zeros_like(captions)
        for tile in _tiles(first, last, images):
            for i, caption in enumerate(captions):
                g_errors = gout[i, tile]
                which = np.flatnonzero(g_errors)
                if not len(which):
                    continue
                # Where most pairs have a gradient, all of them cost less than a copy of those that have one.
                some: Any = which if 2 * len(which) < len(g_errors) else slice(None)
                weights = 2 * g_errors[some]
                above = _above(caption, images[tile][some])
                of_captions[i] += weights @ above
                above *= weights[:, None]
                of_images[tile][some] -= above
        return of_captions

    tasks: list[Callable[[], Array]] = [partial(part, a, b) for a, b in bounds]
    done = host.side_by_side(tasks)
    total = done[0]
    for of_part in done[1:]:
        total += of_part
    return [total if needs[0] else None, of_images if needs[1] else None]


def _supports(be: Backend, captions: Array, images: Array) -> str | None:
    return None if captions.size and images.size else "there are no values"


order_violation_tiles = Rule("cache tiles", _forward, _vjp, _supports)
