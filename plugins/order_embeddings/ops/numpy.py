"""Order violation with NumPy: one caption after another, so that no array holds the differences of all pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duoln.extend import Array, Backend, Rule


def _forward(be: Backend, captions: Array, images: Array) -> tuple[Array, tuple[Array, Array]]:
    errors = np.empty((len(captions), len(images)), captions.dtype)
    for i, caption in enumerate(captions):
        above = np.maximum(caption - images, 0)
        errors[i] = np.vecdot(above, above)
    return errors, (captions, images)


def _vjp(be: Backend, saved: tuple[Array, Array], gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    captions, images = saved
    of_captions, of_images = np.zeros_like(captions), np.zeros_like(images)
    for i, caption in enumerate(captions):
        pairs = np.flatnonzero(gout[i])  # most pairs of a trained model have no gradient
        weights = 2 * gout[i, pairs]
        above = np.maximum(caption - images[pairs], 0)
        of_captions[i] = weights @ above
        of_images[pairs] -= weights[:, None] * above
    return [of_captions if needs[0] else None, of_images if needs[1] else None]


def _supports(be: Backend, captions: Array, images: Array) -> str | None:
    return None if captions.size and images.size else "there are no values"


order_violation_of_captions = Rule("caption by caption", _forward, _vjp, _supports)
