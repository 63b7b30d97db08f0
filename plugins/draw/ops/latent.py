"""Latent variables of a variational autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duoln import extend
from duoln.extend import Array, Backend, Launch, Layout, Rule, Tensor, native, op


@op("statistics: real[n, 2 latent], noise: real[n, latent] -> z: like statistics, divergence: real[n]")
def gaussian_latent(statistics: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A sample of N(mu, sigma^2), and the divergence of that from N(0, 1), in nats a row.

        z = mu + sigma noise
        KL = sum over the latent axis of (mu^2 + sigma^2 - 1) / 2 - log sigma

    The constant is -1/2 for every latent dimension (Kingma and Welling 2014, appendix B).

    Shape:
        statistics (B, 2 latent): mu, then log sigma; noise (B, latent) -> z (B, latent), KL (B,).

    Raises:
        ShapeError: shapes that do not fit.
    """


def _composed(be: Backend, statistics: Array, noise: Array) -> tuple[tuple[Array, Array], Any]:
    latent = noise.shape[1]
    mean, log_sigma = statistics[:, :latent], statistics[:, latent:]
    sigma = be.exp(log_sigma)
    spread = sigma * noise
    each = 0.5 * (mean * mean + sigma * sigma - 1.0) - log_sigma
    return (mean + spread, be.sum(each, axis=1)), (mean, sigma, spread)


def _composed_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    mean, sigma, spread = saved
    of_sample, of_divergence = gouts
    g = be.zeros(mean.shape, be.dtype(mean)) if of_sample is None else of_sample
    d_mean, d_log_sigma = g, g * spread
    if of_divergence is not None:
        along = be.expand_dims(of_divergence, 1)
        d_mean, d_log_sigma = d_mean + along * mean, d_log_sigma + along * (sigma * sigma - 1.0)
    return (be.concat((d_mean, d_log_sigma), axis=1) if needs[0] else None), (g * sigma if needs[1] else None)


gaussian_latent.add(Rule("composed", _composed, _composed_vjp))


# On the CPU and on CUDA: one pass each way in the place of ten --------------------------------------------------

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
