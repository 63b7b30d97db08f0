"""DRAW's glimpses on CUDA: a block computes a whole glimpse of an image, from its filters to what is read.

Kept for the gradient: the chances of the canvas and the images between the rows of the grid that reads. The gradients
compute the filters again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln import extend
from duoln.extend import Array, Backend, Launch, Layout, Rule
from duoln.plugins.draw.ops.grid import EPSILON, LIMIT

GLIMPSE = str(Path(__file__).with_name("glimpse_block.cu"))
_THREADS = 256
_SHARED_BYTES = 48 << 10
"""Shared memory that every device gives a block without asking."""


def _span(pixels: int, points: int) -> float:
    return (pixels - 1) / (points - 1)


class _Glimpse(NamedTuple):
    image: Array
    looked: Array
    chances: Array
    seen_rows: Array
    numbers: tuple[Any, ...]
    """The last arguments of both launches."""


def _shared_of_forward(pixels: int, read: int, write: int) -> int:
    return 4 * pixels * (4 * read + 3 * write)


def _shared_of_backward(pixels: int, read: int, write: int) -> int:
    return 4 * (pixels * (6 * read + 6 * write) + 6 * (read + write))


_IMAGE = "[batch, pixels, pixels]"
_NUMBERS = ("read: int32, write: int32, half: float32, read_span: float32, write_span: float32, limit: float32, "
            "epsilon: float32, twice_read: int32, patches: int32")
_look = Launch(
    GLIMPSE.removesuffix(".cu"), "glimpse_forward",
    f"canvas: real{_IMAGE}, image: real{_IMAGE}, looked: real[batch, numbers], {_NUMBERS} -> drawn: like canvas, "
    "seen: real[batch, patches], chances: like canvas, seen_rows: real[batch, twice_read, pixels]",
    lambda batch, pixels, read, write: Layout((batch,), (_THREADS,), shared=_shared_of_forward(pixels, read, write)))
_look_back = Launch(
    GLIMPSE.removesuffix(".cu"), "glimpse_backward",
    f"image: real{_IMAGE}, looked: real[batch, numbers], chances: real{_IMAGE}, "
    f"seen_rows: real[batch, twice_read, pixels], d_drawn: real{_IMAGE}?, d_seen: real[batch, patches]?, {_NUMBERS} "
    "-> d_canvas: like image, d_image: like image?, d_looked: like looked?",
    lambda batch, pixels, read, write: Layout((batch,), (_THREADS,), shared=_shared_of_backward(pixels, read, write)))


def _glimpse_supports(be: Backend, canvas: Array, image: Array, looked: Array, read: int, write: int,
                      **unused: Any) -> str | None:
    if be.dtype(canvas) != "float32":
        return f"the kernel is for float32, not {be.dtype(canvas)}"
    shared = _shared_of_backward(canvas.shape[-1], read, write)
    if shared > _SHARED_BYTES:
        return f"{shared} bytes of filters and their gradients are more than {_SHARED_BYTES}"
    return extend.cuda.too_large(canvas, image, looked) if canvas.size else "there are no values"


def _glimpse_forward(be: Backend, canvas: Array, image: Array, looked: Array, read: int, write: int,
                     ) -> tuple[tuple[Array, Array], _Glimpse]:
    pixels = canvas.shape[-1]
    numbers = (read, write, pixels / 2, _span(pixels, read), _span(pixels, write), LIMIT, EPSILON, 2 * read,
               2 * read * read)
    drawn, seen, chances, seen_rows = _look[be.name](canvas, image, looked, *numbers)
    return (drawn, seen), _Glimpse(image, looked, chances, seen_rows, numbers)


def _glimpse_vjp(be: Backend, saved: _Glimpse, gouts: tuple[Array | None, Array | None],
                 needs: Sequence[bool]) -> list[Array | None]:
    image, looked, chances, seen_rows, numbers = saved
    d_canvas, d_image, d_looked = _look_back[be.name](image, looked, chances, seen_rows, *gouts, *numbers,
                                                      d_image=needs[1], d_looked=needs[2])
    return [d_canvas if needs[0] else None, d_image, d_looked]


glimpse_on_cuda = Rule("cuda glimpse", _glimpse_forward, _glimpse_vjp, _glimpse_supports)
