"""Latent variables of a variational autoencoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duoln.extend import Array, Backend, Rule, Tensor, op


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


def _forward(be: Backend, statistics: Array, noise: Array) -> tuple[tuple[Array, Array], Any]:
    latent = noise.shape[1]
    mean, log_sigma = statistics[:, :latent], statistics[:, latent:]
    sigma = be.exp(log_sigma)
    spread = sigma * noise
    each = 0.5 * (mean * mean + sigma * sigma - 1.0) - log_sigma
    return (mean + spread, be.sum(each, axis=1)), (mean, sigma, spread)


def _vjp(be: Backend, saved: Any, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    mean, sigma, spread = saved
    of_sample, of_divergence = gouts
    g = be.zeros(mean.shape, be.dtype(mean)) if of_sample is None else of_sample
    d_mean, d_log_sigma = g, g * spread
    if of_divergence is not None:
        along = be.expand_dims(of_divergence, 1)
        d_mean, d_log_sigma = d_mean + along * mean, d_log_sigma + along * (sigma * sigma - 1.0)
    return (be.concat((d_mean, d_log_sigma), axis=1) if needs[0] else None), (g * sigma if needs[1] else None)


gaussian_latent.add(Rule("composed", _forward, _vjp))
