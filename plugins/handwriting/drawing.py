"""Pictures of strokes, and of where in the text the window was."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from duoln.errors import UsageError
from duoln.pictures.drawing import figure


def draw(out: Path, offsets: np.ndarray, pen_up: np.ndarray) -> None:
    """Write a picture of a line of handwriting to `out`."""
    parts = strokes(offsets, pen_up)
    width, height = np.maximum(np.ptp(np.concatenate(parts), axis=0), 1.0)
    with figure(out, size=(8.0, float(np.clip(8.0 * height / width, 0.8, 4.0)))) as (_, axes):
        axis = axes[0][0]
        for stroke in parts:
            axis.plot(stroke[:, 0], stroke[:, 1], color="black", linewidth=1.0)
        axis.set_aspect("equal")
        axis.invert_yaxis()
        axis.axis("off")


def strokes(offsets: np.ndarray, pen_up: np.ndarray) -> list[np.ndarray]:
    """The strokes of a line: arrays (points, 2) of places on the whiteboard."""
    places = np.cumsum(offsets, axis=0)
    bounds = [0, *(np.flatnonzero(pen_up) + 1), len(places)]
    return [places[a:b] for a, b in pairwise(bounds) if b > a]


def draw_attention(out: Path, phi: np.ndarray, text: str) -> None:
    """Write a picture of the window: for each point, how much it looked at each character."""
    if phi.shape[1] != len(text):
        raise UsageError(f"[handwriting] expected weights of {len(text)} characters, found {phi.shape[1]}")
    with figure(out, size=(8.0, 3.0)) as (_, axes):
        axis = axes[0][0]
        axis.imshow(phi.T, aspect="auto", origin="lower", cmap="magma", interpolation="nearest")
        axis.set_yticks(range(len(text)), list(text))
        axis.set_xlabel("point")
