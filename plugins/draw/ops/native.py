"""DRAW on the CPU, compiled: a row of a glimpse stays in L1 from its filters on; latents are one pass each way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln.extend import Array, Backend, Rule, native
from duoln.plugins.draw.ops.grid import EPSILON, LIMIT

_FILE = str(Path(__file__).with_name("glimpse.cpp"))
_SIZES = ("batch: int64, pixels: int64, line: int64, read: int64, write: int64, half: float64, limit: float64, "
          "epsilon: float64, threads: int32")

_VECTOR_BYTES = 64
"""The widest vectors of any CPU; a line of that many bytes is whole vectors of narrower ones."""

_look = native.Function(_FILE, "glimpse_forward",
                        "canvas: real[3], image: real[3], looked: real[2], drawn: real[3], seen: real[2], "
                        f"chances: real[3], filters: real[4], seen_rows: real[3], {_SIZES}")
_look_back = native.Function(_FILE, "glimpse_backward",
                             "image: real[3], looked: real[2], chances: real[3], filters: real[4], seen_rows: real[3], "
                             "d_drawn: real[3]?, d_seen: real[2]?, d_canvas: real[3], d_image: real[3]?, "
                             f"d_looked: real[2]?, {_SIZES}")


class _Saved(NamedTuple):
    image: Array
    looked: Array
    chances: Array
    """sigmoid(canvas): (B, P, line), as in the other arrays a line being P values and some that fill a vector."""
    filters: Array
    """Columns, then rows, of the grid that reads and then of the grid that writes: (B, 2, read + write, line)."""
    seen_rows: Array
    """The two images after the row filters of the grid that reads: (B, 2 read, line)."""
    sizes: tuple[Any, ...]


def _supports(be: Backend, canvas: Array, image: Array, looked: Array, **unused: Any) -> str | None:
    return native.refusal(_FILE, canvas.dtype) if canvas.size else "there are no values"


def _forward(be: Backend, canvas: Array, image: Array, looked: Array, read: int, write: int,
             centre: str) -> tuple[tuple[Array, Array], _Saved]:
    canvas, image, looked = (np.ascontiguousarray(a) for a in (canvas, image, looked))
    batch, pixels = canvas.shape[:2]
    values = _VECTOR_BYTES // canvas.itemsize
    line = -(-pixels // values) * values
    half = (pixels if centre == "edge" else pixels + 1) / 2
    sizes = (batch, pixels, line, read, write, half, LIMIT, EPSILON, native.threads_for(4 * canvas.nbytes))
    saved = _Saved(image, looked, np.empty((batch, pixels, line), canvas.dtype),
                   np.empty((batch, 2, read + write, line), canvas.dtype),
                   np.empty((batch, 2 * read, line), canvas.dtype), sizes)
    drawn, seen = np.empty_like(canvas), np.empty((batch, 2 * read * read), canvas.dtype)
    _look(canvas, image, looked, drawn, seen, saved.chances, saved.filters, saved.seen_rows, *sizes)
    return (drawn, seen), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    d_drawn, d_seen = (None if g is None else np.ascontiguousarray(g) for g in gouts)
    d_canvas = np.empty_like(saved.image)
    d_image = np.empty_like(saved.image) if needs[1] else None
    d_looked = np.empty_like(saved.looked) if needs[2] else None
    _look_back(saved.image, saved.looked, saved.chances, saved.filters, saved.seen_rows, d_drawn, d_seen, d_canvas,
               d_image, d_looked, *saved.sizes)
    return [d_canvas if needs[0] else None, d_image, d_looked]


write_then_read_compiled = Rule("compiled", _forward, _vjp, _supports)


# The latent variables: one pass each way in the place of ten ------------------------------------------------------

_LATENT = str(Path(__file__).with_name("latent.cpp"))
_LATENT_SIZES = "rows: int64, width: int64, threads: int32"

_draw = native.Function(_LATENT, "latent_forward",
                        f"statistics: real[2], noise: real[2], sample: real[2], divergence: real[1], {_LATENT_SIZES}")
_differentiate = native.Function(_LATENT, "latent_backward",
                                 "statistics: real[2], noise: real[2], d_sample: real[2]?, d_divergence: real[1]?, "
                                 f"d_statistics: real[2], d_noise: real[2]?, {_LATENT_SIZES}")


class _SavedLatent(NamedTuple):
    statistics: Array
    noise: Array

    def sizes(self) -> tuple[int, int, int]:
        return *self.noise.shape, native.threads_for(self.statistics.nbytes)


def _supports_latent(be: Backend, statistics: Array, noise: Array) -> str | None:
    return native.refusal(_LATENT, noise.dtype) if noise.size else "there are no values"


def _forward_latent(be: Backend, statistics: Array, noise: Array) -> tuple[tuple[Array, Array], _SavedLatent]:
    saved = _SavedLatent(np.ascontiguousarray(statistics), np.ascontiguousarray(noise))
    sample, divergence = np.empty_like(saved.noise), np.empty(len(noise), noise.dtype)
    _draw(*saved, sample, divergence, *saved.sizes())
    return (sample, divergence), saved


def _vjp_latent(be: Backend, saved: _SavedLatent, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    d_sample, d_divergence = (None if g is None else np.ascontiguousarray(g) for g in gouts)
    d_statistics = np.empty_like(saved.statistics)
    d_noise = np.empty_like(saved.noise) if needs[1] else None
    _differentiate(*saved, d_sample, d_divergence, d_statistics, d_noise, *saved.sizes())
    return d_statistics if needs[0] else None, d_noise


latent_compiled = Rule("compiled", _forward_latent, _vjp_latent, _supports_latent)
