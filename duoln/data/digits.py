"""Synthetic digits: strokes of ten templates, bent, slanted, scaled and drawn with a round pen."""

from __future__ import annotations

import numpy as np

from duoln.randomness import Stream

_ARC = 9
"""Points of a full ellipse."""


def _ellipse(x: float, y: float, rx: float, ry: float, start: float = 0.0, stop: float = 1.0) -> np.ndarray:
    points = max(round(_ARC * abs(stop - start)) + 1, 3)
    turn = 2 * np.pi * np.linspace(start, stop, points)
    return np.stack((x + rx * np.sin(turn), y - ry * np.cos(turn)), axis=1)


def _line(*points: tuple[float, float]) -> np.ndarray:
    return np.array(points, dtype=np.float64)


# Several ways to write each digit, as strokes in a square from (0, 0) top left to (1, 1).
TEMPLATES: dict[int, list[list[np.ndarray]]] = {
    0: [[_ellipse(.5, .5, .26, .38)], [_ellipse(.5, .5, .34, .34)]],
    1: [[_line((.5, .1), (.5, .9))], [_line((.36, .26), (.54, .1), (.52, .9))],
        [_line((.36, .26), (.52, .1), (.52, .88)), _line((.34, .9), (.7, .9))]],
    2: [[np.vstack((_ellipse(.5, .32, .24, .22, -.25, .38), _line((.26, .88), (.78, .86))))],
        [np.vstack((_ellipse(.48, .3, .26, .2, -.3, .4), _ellipse(.32, .78, .1, .1, .1, -.7),
                    _line((.5, .82), (.8, .88))))]],
    3: [[_ellipse(.46, .3, .22, .2, -.2, .5), _ellipse(.46, .69, .26, .21, 0., .7)],
        [_line((.26, .12), (.72, .12), (.46, .42)), _ellipse(.46, .66, .25, .24, 0., .72)]],
    4: [[_line((.34, .1), (.22, .56), (.78, .54)), _line((.66, .12), (.62, .9))],
        [_line((.64, .9), (.64, .1), (.2, .62), (.84, .62))]],
    5: [[_line((.74, .12), (.34, .12), (.3, .46)), _ellipse(.46, .66, .26, .23, -.12, .7)],
        [np.vstack((_line((.76, .14), (.38, .16), (.32, .44)), _ellipse(.48, .66, .24, .22, -.05, .62)))]],
    6: [[np.vstack((_line((.66, .1), (.38, .36)), _ellipse(.5, .68, .22, .2, -.25, .75)))],
        [np.vstack((_line((.5, .08), (.3, .5)), _ellipse(.48, .7, .2, .18, -.25, .8)))]],
    7: [[_line((.22, .14), (.78, .14), (.42, .9))],
        [_line((.22, .16), (.76, .14), (.46, .9)), _line((.34, .5), (.7, .5))]],
    8: [[_ellipse(.5, .3, .19, .19), _ellipse(.5, .69, .24, .21)], [_ellipse(.52, .28, .17, .17),
                                                                 _ellipse(.47, .7, .2, .2)]],
    9: [[_ellipse(.48, .32, .22, .21), _line((.7, .3), (.64, .9))],
        [np.vstack((_ellipse(.48, .3, .21, .2, .25, 1.25), _line((.69, .3), (.68, .66), (.44, .9))))]],
}
_BLOCK = 2000


def make_digits(count: int, seed: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (count, 28, 28) and labels uint8 (count,), the same for the same seed and split.

    Slant, size, place, thickness and the bend of each stroke vary, and the shapes of some labels are similar, so that
    comparison with a template does not solve the task.
    """
    rng = Stream(seed, f"made digits {split}")
    labels = rng.integers(10, (count,)).astype(np.uint8)
    images = np.empty((count, 28, 28), np.uint8)
    for digit, ways in TEMPLATES.items():
        of_digit = np.flatnonzero(labels == digit)
        way = rng.integers(len(ways), (len(of_digit),))
        for k, strokes in enumerate(ways):
            rows = of_digit[way == k]
            for i in range(0, len(rows), _BLOCK):
                images[rows[i:i + _BLOCK]] = _draw(strokes, len(rows[i:i + _BLOCK]), rng)
    return images, labels


def _draw(strokes: list[np.ndarray], count: int, rng: Stream) -> np.ndarray:
    """`count` distorted drawings of the same strokes."""
    matrix, shift = _affine(count, rng)
    thickness = rng.uniform((count, 1), 0.030, 0.065).astype(np.float32)
    # A smooth bend of the whole square, different for each drawing.
    waves = rng.uniform((count, 2, 2), -0.05, 0.05)
    phases = rng.uniform((count, 2, 2), 0.0, 2 * np.pi)
    grid = ((np.arange(28) + 0.5) / 28).astype(np.float32)
    px, py = (g.reshape(1, 784) for g in np.meshgrid(grid, grid))
    nearest = np.full((count, 784), np.inf, np.float32)
    for stroke in strokes:
        points = stroke[None] + 0.022 * rng.gaussian((count, *stroke.shape))
        bent = points + np.stack([
            sum(waves[:, a, b, None] * np.sin((b + 1) * np.pi * points[:, :, 1 - a] + phases[:, a, b, None])
                for b in range(2)) for a in range(2)], axis=2)
        placed = (np.einsum("nij,npj->npi", matrix, bent - 0.5) + 0.5 + shift).astype(np.float32)
        for i in range(placed.shape[1] - 1):
            np.minimum(nearest, _distance(px, py, placed[:, i], placed[:, i + 1]), out=nearest)
    ink = np.clip((thickness - np.sqrt(nearest)) / 0.03 + 0.5, 0.0, 1.0)
    noise = rng.uniform((count, 784), 0.85, 1.0).astype(np.float32)
    array: np.ndarray = (ink * noise * 255).astype(np.uint8).reshape(count, 28, 28)
    return array


def _affine(count: int, rng: Stream) -> tuple[np.ndarray, np.ndarray]:
    """For each drawing, a shift, and one matrix of size, proportion, slant and rotation."""
    size = rng.uniform((count,), 0.62, 0.85)
    width = size * rng.uniform((count,), 0.75, 1.2)
    slant, turn = rng.uniform((count,), -0.35, 0.25), rng.uniform((count,), -0.25, 0.25)
    cos, sin = np.cos(turn), np.sin(turn)
    shear = np.stack((np.stack((width, slant * size), 1), np.stack((0 * size, size), 1)), 1)
    spin = np.stack((np.stack((cos, -sin), 1), np.stack((sin, cos), 1)), 1)
    return spin @ shear, rng.uniform((count, 1, 2), -0.06, 0.06)


def _distance(px: np.ndarray, py: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distance of each pixel to the segment from a to b, for each drawing."""
    ax, ay = a[:, :1], a[:, 1:]
    dx, dy = b[:, :1] - ax, b[:, 1:] - ay
    rx, ry = px - ax, py - ay
    along = np.clip((rx * dx + ry * dy) / (dx * dx + dy * dy + 1e-9), 0.0, 1.0)
    rx -= along * dx
    ry -= along * dy
    array: np.ndarray = rx * rx + ry * ry
    return array
