"""Pictures of two coloured shapes on a coloured ground, synthetic, with five captions each."""

from __future__ import annotations

import numpy as np

from duoln import Stream
from duoln.plugins.order_embeddings.corpus import CAPTIONS
from duoln.plugins.order_embeddings.flickr8k import Pictures

PIXELS = 32
COLOURS = {"red": (200, 40, 40), "green": (40, 160, 60), "blue": (40, 70, 200), "yellow": (220, 200, 40),
           "white": (230, 230, 230), "black": (20, 20, 20)}
SHAPES = ("square", "disc", "bar")
_FORMS = ("a {0} {1} left of a {2} {3}", "a {2} {3} right of a {0} {1}", "a {0} {1} and a {2} {3} on {4} ground",
          "on {4} ground there is a {0} {1}", "a {2} {3} on {4}")


def make_pictures(count: int, seed: int, split: str) -> Pictures:
    """The pictures of a split; they are the same for the same seed."""
    rng = Stream(seed, f"order_embeddings.made.{split}")
    images, captions = np.empty((count, PIXELS, PIXELS, 3), np.uint8), []
    names = list(COLOURS)
    for image in images:
        left, right, ground = (names[k] for k in rng.permutation(len(names))[:3])
        shapes = [SHAPES[int(k)] for k in rng.integers(len(SHAPES), (2,))]
        image[:] = COLOURS[ground]
        for column, shape, colour in ((PIXELS // 4, shapes[0], left), (3 * PIXELS // 4, shapes[1], right)):
            row = PIXELS // 4 + int(rng.integers(PIXELS // 2, ()))
            image[_inside(shape, row, column)] = COLOURS[colour]
        image[:] = np.clip(image + 8 * rng.gaussian(image.shape), 0, 255)
        words = (left, shapes[0], right, shapes[1], ground)
        captions += [form.format(*words).split() for form in _FORMS[:CAPTIONS]]
    return Pictures(images, captions)


def _inside(shape: str, row: int, column: int) -> np.ndarray:
    down, across = np.ogrid[-row:PIXELS - row, -column:PIXELS - column]
    if shape == "disc":
        return np.asarray(down * down + across * across <= 36)
    height, width = (5, 5) if shape == "square" else (2, 7)
    return np.asarray((abs(down) <= height) & (abs(across) <= width))
