"""Strokes as SVG, a path each, written here; as PNG or PDF, and the window's picture, with matplotlib."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from duoln.data.files import write_whole
from duoln.errors import UsageError
from duoln.pictures.drawing import check_picture, figure

__all__ = ["check", "check_picture", "draw", "draw_attention", "strokes", "svg"]

_MARGIN = 40
_INK = 6
"""Width of a line, in units of the whiteboard."""


def check(out: Path) -> None:
    """Raises UsageError for a name that is no picture's, or one that needs matplotlib where it is not installed."""
    if out.suffix.lower() != ".svg":
        check_picture(out)


def draw(out: Path, offsets: np.ndarray, pen_up: np.ndarray, text: str) -> None:
    """Write a line of handwriting to `out`: .svg by itself, .png or .pdf with matplotlib.

    Raises:
        UsageError: the name is no picture's.
        DataError: the SVG cannot be written.
    """
    parts = strokes(offsets, pen_up)
    if out.suffix.lower() == ".svg":
        write_whole(out, svg(parts, text).encode())
        return
    whole = np.concatenate(parts)
    width, height = np.maximum(np.ptp(whole, axis=0), 1.0)
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


def svg(parts: list[np.ndarray], title: str) -> str:
    """The strokes as the text of an SVG file."""
    whole = np.concatenate(parts)
    low = whole.min(axis=0) - _MARGIN
    width, height = np.ceil(np.ptp(whole, axis=0) + 2 * _MARGIN)
    paths = "\n".join(f'<path d="M{" ".join(f"{x:.0f},{y:.0f}" for x, y in part - low)}"/>'
                      for part in (np.repeat(p, 2, axis=0) if len(p) == 1 else p for p in parts))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}">\n'
            f"<title>{escape(title)}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
            f'<g fill="none" stroke="black" stroke-width="{_INK}" stroke-linecap="round" stroke-linejoin="round">\n'
            f"{paths}\n</g>\n</svg>\n")


def draw_attention(out: Path, phi: np.ndarray, text: str) -> None:
    """Write a picture of the window: for each point, how much it looked at each character."""
    if phi.shape[1] != len(text):
        raise UsageError(f"[handwriting] expected weights of {len(text)} characters, found {phi.shape[1]}")
    with figure(out, size=(8.0, 3.0)) as (_, axes):
        axis = axes[0][0]
        axis.imshow(phi.T, aspect="auto", origin="lower", cmap="magma", interpolation="nearest")
        axis.set_yticks(range(len(text)), list(text))
        axis.set_xlabel("point")
