"""The cases that prove DRAW's rules on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duoln.extend import DeviceCase, RuleCase


def _floats(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def glimpse(batch: int, pixels: int, read: int, write: int, centre: str = "edge", misaligned: bool = False) -> RuleCase:
    """One case of `write_then_read`."""
    rng = np.random.default_rng([batch, pixels, read, write])
    canvas, image, looked = _floats(rng, (batch, pixels, pixels), (batch, pixels, pixels), (batch, 10 + write * write))
    looked *= np.float32(0.5)
    if batch > 1:
        looked[0, :10] = 30 * np.sign(looked[0, :10])  # beyond the range to which the numbers of a grid are clamped
    attrs = {"read": read, "write": write, "centre": centre}
    return RuleCase("write_then_read", _of_glimpse(batch, pixels, read, write, centre, misaligned),
                    (canvas, image, looked), attrs, pixels ** 2, misaligned)


def _of_glimpse(batch: int, pixels: int, read: int, write: int, centre: str = "edge", misaligned: bool = False) -> str:
    return f"B{batch} P{pixels} read {read} write {write} {centre}{', misaligned' if misaligned else ''}"


def bank(batch: int, size: int, pixels: int, centre: str = "edge", inverse: bool = False) -> RuleCase:
    """One case of `filterbank`."""
    [where] = _floats(np.random.default_rng([batch, size, pixels]), (batch, 5))
    if batch > 1:
        where[0] = 30 * np.sign(where[0])
    return RuleCase("filterbank", _of_bank(batch, size, pixels, centre, inverse), (where,),
                    {"size": size, "pixels": pixels, "centre": centre, "inverse": inverse}, pixels ** 2)


def _of_bank(batch: int, size: int, pixels: int, centre: str = "edge", inverse: bool = False) -> str:
    return f"B{batch} {size} of {pixels}, {centre}{', inverse' if inverse else ''}"


def latent(batch: int, size: int, misaligned: bool = False) -> RuleCase:
    """One case of `gaussian_latent`."""
    statistics, noise = _floats(np.random.default_rng([batch, size]), (batch, 2 * size), (batch, size))
    return RuleCase("gaussian_latent", _of_latent(batch, size, misaligned), (statistics, noise), {}, 2 * size,
                    misaligned)


def _of_latent(batch: int, size: int, misaligned: bool = False) -> str:
    return f"B{batch} of {size}{', misaligned' if misaligned else ''}"


def device_cases() -> Sequence[DeviceCase]:
    """Every case; the first ones of each operator are of the net."""
    glimpses = ((3, 28, 5, 2, "draw"), (2, 16, 2, 3, "edge", True), (2, 33, 2, 3, "draw"), (1, 28, 2, 5), (2, 5, 3, 4),
                (1, 1, 2, 2), (1, 64, 4, 3), (64, 28, 2, 5), (128, 28, 5, 5), (301, 28, 2, 5, "draw"),
                (133, 60, 12, 12))
    banks = ((3, 5, 7, "draw", True), (2, 12, 65), (1, 2, 28), (2, 3, 1), (64, 5, 28), (301, 12, 60))
    latents = ((4, 32), (5, 33, True), (9, 100), (1, 1), (3, 4), (128, 100), (4099, 33))
    return [*(DeviceCase("write_then_read", _of_glimpse(*a), glimpse, a, net=a in glimpses[:3]) for a in glimpses),
            *(DeviceCase("filterbank", _of_bank(*a), bank, a, net=a in banks[:2]) for a in banks),
            *(DeviceCase("gaussian_latent", _of_latent(*a), latent, a, net=a in latents[:3]) for a in latents)]
