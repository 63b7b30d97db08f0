"""The operator of order embeddings: how far pairs of points are from being in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from duoln.extend import Array, Backend, Launch, Rule, Tensor, case, native, op, register

_BLOCK_VALUES = 1 << 22
"""The most differences that exist at a time. All pairs of a batch of 128 in 1024 dimensions have four times as many."""


@op("captions: real[n, d], images: real[m, d] -> real[n, m]")
def order_violation(captions: Tensor, images: Tensor) -> Tensor:
    """E_ij = sum over k of max(0, captions_ik - images_jk)^2 (Vendrov et al. 2016, eq. 3), for all pairs.

    It is 0 where no coordinate of the caption is above that of the image: then the pair is in order. The value and
    the gradient compute the differences of a few rows at a time.

    Shape:
        captions (N, D), images (M, D) -> (N, M).

    Raises:
        ShapeError: other ranks, or widths that differ.
    """


def _blocks(captions: Array, images: Array) -> Iterator[slice]:
    rows = max(_BLOCK_VALUES // max(images.shape[0] * images.shape[1], 1), 1)
    return (slice(i, min(i + rows, captions.shape[0])) for i in range(0, captions.shape[0], rows))


def _positive_excess(be: Backend, captions: Array, images: Array) -> Array:
    """max(0, s - m) of some captions and all images: (rows, M, D)."""
    return be.maximum(be.expand_dims(captions, 1) - be.expand_dims(images, 0), 0.0)


def _forward(be: Backend, captions: Array, images: Array) -> tuple[Array, Any]:
    parts = []
    for rows in _blocks(captions, images):
        above = _positive_excess(be, captions[rows], images)
        parts.append(be.sum(above * above, axis=2))
    errors = be.concat(parts, axis=0) if parts else be.zeros((0, images.shape[0]), be.dtype(images))
    return errors, (captions, images)


def _vjp(be: Backend, saved: Any, gout: Array, needs: Sequence[bool]) -> tuple[Array | None, Array | None]:
    captions, images = saved
    of_captions, of_images = [], be.zeros(images.shape, be.dtype(images))
    for rows in _blocks(captions, images):
        g_above = _positive_excess(be, captions[rows], images) * be.expand_dims(2.0 * gout[rows], 2)
        of_captions.append(be.sum(g_above, axis=1))
        of_images = of_images - be.sum(g_above, axis=0)
    if not of_captions:
        return be.zeros(captions.shape, be.dtype(captions)), of_images
    return be.concat(of_captions, axis=0) if needs[0] else None, of_images if needs[1] else None


order_violation.add(Rule("composed", _forward, _vjp))


# Compiled: four images share a load of a caption, and differences stay in registers ------------------------------

_TEXT = str(Path(__file__).with_name("violation"))
_POINTS = "captions: real[rows, width], images: real[columns, width]"
_compare = Launch(_TEXT, "violation_forward", f"{_POINTS}, threads: int32 -> errors: real[rows, columns]")
_differentiate = Launch(_TEXT, "violation_backward", f"{_POINTS}, g: real[rows, columns], threads: int32 "
                                                     "-> d_captions: like captions?, d_images: like images?")


def _refusal(be: Backend, captions: Array, images: Array) -> str | None:
    return native.refusal(f"{_TEXT}.cpp", captions.dtype) if captions.size and images.size else "there are no values"


def _threads(captions: Array, images: Array) -> int:
    return native.threads_for(captions.size * len(images) * captions.itemsize)


def _forward_compiled(be: Backend, captions: Array, images: Array) -> tuple[Array, tuple[Array, Array]]:
    return _compare[be.name](captions, images, _threads(captions, images)), (captions, images)


def _vjp_compiled(be: Backend, saved: tuple[Array, Array], gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    return list(_differentiate[be.name](*saved, gout, _threads(*saved), *needs))


order_violation_compiled = Rule("compiled", _forward_compiled, _vjp_compiled, _refusal)


order_violation.add(order_violation_compiled, "numpy")
_SIZES = ((1, 1, 1), (5, 3, 7), (2, 9, 33), (128, 128, 256), (33, 17, 1024))
register(order_violation, lambda: [case(order_violation, (n, d), (m, d)) for n, m, d in _SIZES])
