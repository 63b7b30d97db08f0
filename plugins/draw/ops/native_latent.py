"""The latent variables of DRAW on the CPU, compiled: one pass each way in the place of ten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln.extend import Array, Backend, Rule, native

_FILE = str(Path(__file__).with_name("latent.cpp"))
_SIZES = "rows: int64, width: int64, threads: int32"

_draw = native.Function(_FILE, "latent_forward",
                        f"statistics: real[2], noise: real[2], sample: real[2], divergence: real[1], {_SIZES}")
_differentiate = native.Function(_FILE, "latent_backward",
                                 "statistics: real[2], noise: real[2], d_sample: real[2]?, d_divergence: real[1]?, "
                                 f"d_statistics: real[2], d_noise: real[2]?, {_SIZES}")


class _Saved(NamedTuple):
    statistics: Array
    noise: Array

    def sizes(self) -> tuple[int, int, int]:
        return *self.noise.shape, native.threads_for(self.statistics.nbytes)


def _supports(be: Backend, statistics: Array, noise: Array) -> str | None:
    return native.refusal(_FILE, noise.dtype) if noise.size else "there are no values"


def _forward(be: Backend, statistics: Array, noise: Array) -> tuple[tuple[Array, Array], _Saved]:
    saved = _Saved(np.ascontiguousarray(statistics), np.ascontiguousarray(noise))
    sample, divergence = np.empty_like(saved.noise), np.empty(len(noise), noise.dtype)
    _draw(*saved, sample, divergence, *saved.sizes())
    return (sample, divergence), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    d_sample, d_divergence = (None if g is None else np.ascontiguousarray(g) for g in gouts)
    d_statistics = np.empty_like(saved.statistics)
    d_noise = np.empty_like(saved.noise) if needs[1] else None
    _differentiate(*saved, d_sample, d_divergence, d_statistics, d_noise, *saved.sizes())
    return d_statistics if needs[0] else None, d_noise


latent_compiled = Rule("compiled", _forward, _vjp, _supports)
