"""The cases that prove DRAW's rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duoln.extend import Case


def _floats(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def glimpse(batch: int, pixels: int, read: int, write: int, misaligned: bool = False) -> Case:
    """One case of `write_then_read`."""
    def arrays() -> Sequence[np.ndarray]:
        rng = np.random.default_rng([batch, pixels, read, write])
        canvas, image, looked = _floats(rng, (batch, pixels, pixels), (batch, pixels, pixels),
                                        (batch, 10 + write * write))
        looked *= np.float32(0.5)
        if batch > 1:
            looked[0, :10] = 30 * np.sign(looked[0, :10])  # beyond the range to which the numbers of a grid are clamped
        return canvas, image, looked

    label = f"B{batch} P{pixels} read {read} write {write}{', misaligned' if misaligned else ''}"
    return Case("write_then_read", label, arrays, {"read": read, "write": write}, pixels ** 2,
                (batch, pixels, read, write), misaligned)


def latent(batch: int, size: int, misaligned: bool = False) -> Case:
    """One case of `gaussian_latent`."""
    def arrays() -> Sequence[np.ndarray]:
        return _floats(np.random.default_rng([batch, size]), (batch, 2 * size), (batch, size))

    return Case("gaussian_latent", f"B{batch} of {size}{', misaligned' if misaligned else ''}", arrays, {}, 2 * size,
                (batch, size), misaligned)


def glimpses() -> list[Case]:
    """The cases of `write_then_read`."""
    return _first_of_net(3, [
        glimpse(3, 28, 5, 2), glimpse(2, 16, 2, 3, misaligned=True), glimpse(2, 33, 2, 3),
        glimpse(1, 28, 2, 5), glimpse(2, 5, 3, 4), glimpse(1, 1, 2, 2), glimpse(1, 64, 4, 3), glimpse(64, 28, 2, 5),
        glimpse(128, 28, 5, 5), glimpse(301, 28, 2, 5), glimpse(133, 60, 12, 12)])


def latents() -> list[Case]:
    """The cases of `gaussian_latent`."""
    return _first_of_net(3, [latent(4, 32), latent(5, 33, misaligned=True), latent(9, 100), latent(1, 1), latent(3, 4),
                             latent(128, 100), latent(4099, 33)])


def _first_of_net(most: int, cases: list[Case]) -> list[Case]:
    return [case._replace(net=k < most) for k, case in enumerate(cases)]
