"""A sample of DRAW's latent variables, on the CPU and on CUDA: one pass each way in the place of ten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from duoln import extend
from duoln.extend import Array, Backend, Launch, Layout, Rule, native

_TEXT = str(Path(__file__).with_name("latent"))
_ROWS, _LANES = 4, 32
"""On CUDA a warp has a row, and a block four."""
_READ = "noise: real[rows, width], statistics: real[rows, wide]"


def _plan(rows: int) -> Layout:
    return Layout((-(-rows // _ROWS),), (_LANES, _ROWS))


_draw = Launch(_TEXT, "latent_forward", f"{_READ} -> sample: like noise, divergence: real[rows]", _plan)
_differentiate = Launch(_TEXT, "latent_backward", f"{_READ}, d_sample: real[rows, width]?, "
                                                  "d_divergence: real[rows]? or one "
                                                  "-> d_statistics: like statistics, d_noise: like noise?", _plan)


def _forward(be: Backend, statistics: Array, noise: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return _draw[be.name](noise, statistics), (noise, statistics)


def _vjp(be: Backend, saved: tuple[Array, Array], gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    d_statistics, d_noise = _differentiate[be.name](*saved, *gouts, d_noise=needs[1])
    return d_statistics if needs[0] else None, d_noise


def _compiled(be: Backend, statistics: Array, noise: Array) -> str | None:
    return native.refusal(f"{_TEXT}.cpp", noise.dtype) if noise.size else "there are no values"


def _on_cuda(be: Backend, statistics: Array, noise: Array) -> str | None:
    if be.dtype(noise) != "float32":
        return f"the kernel is for float32, not {be.dtype(noise)}"
    return extend.cuda.too_large(statistics) if noise.size else "there are no values"


latent_compiled = Rule("compiled", _forward, _vjp, _compiled)
latent_on_cuda = Rule("cuda row", _forward, _vjp, _on_cuda)
