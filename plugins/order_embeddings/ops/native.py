"""Order violation on the CPU, compiled: four images share a load of a caption, and differences stay in registers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from duoln.extend import Array, Backend, Rule, native

_FILE = str(Path(__file__).with_name("violation.cpp"))
_SIZES = "rows: int64, columns: int64, width: int64, threads: int32"

_compare = native.Function(_FILE, "violation_forward", f"captions: real[2], images: real[2], errors: real[2], {_SIZES}")
_differentiate = native.Function(_FILE, "violation_backward", "captions: real[2], images: real[2], g: real[2], "
                                                              f"d_captions: real[2]?, d_images: real[2]?, {_SIZES}")


def _supports(be: Backend, captions: Array, images: Array) -> str | None:
    return native.refusal(_FILE, captions.dtype) if captions.size and images.size else "there are no values"


def _sizes(captions: Array, images: Array) -> tuple[int, int, int, int]:
    return (len(captions), *images.shape, native.threads_for(captions.size * len(images) * captions.itemsize))


def _forward(be: Backend, captions: Array, images: Array) -> tuple[Array, tuple[Array, Array]]:
    captions, images = np.ascontiguousarray(captions), np.ascontiguousarray(images)
    errors = np.empty((len(captions), len(images)), captions.dtype)
    _compare(captions, images, errors, *_sizes(captions, images))
    return errors, (captions, images)


def _vjp(be: Backend, saved: tuple[Array, Array], gout: Array, needs: Sequence[bool]) -> list[Array | None]:
    captions, images = saved
    d_captions, d_images = (np.empty_like(a) if need else None for a, need in zip(saved, needs, strict=True))
    _differentiate(captions, images, np.ascontiguousarray(gout), d_captions, d_images, *_sizes(captions, images))
    return [d_captions, d_images]


order_violation_compiled = Rule("compiled", _forward, _vjp, _supports)
