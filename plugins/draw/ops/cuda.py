"""DRAW's operators on CUDA: a block computes a whole glimpse of an image, from its filters to what is read.

Kept for the gradient: of a glimpse the chances of the canvas and the images between the rows of the grid that reads; of
a filterbank and a sample their inputs. The gradients compute the filters again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from duoln import extend
from duoln.extend import Array, Backend, Rule
from duoln.plugins.draw.ops.grid import EPSILON, LIMIT, WHERE

_FOLDER = Path(__file__).parent
GLIMPSE, FILTERBANK, LATENT = (str(_FOLDER / name) for name in ("glimpse.cu", "filterbank.cu", "latent.cu"))
_THREADS, _ROWS, _LANES = 256, 4, 32
_SHARED_BYTES = 48 << 10
"""Shared memory that every device gives a block without asking."""
_GRIDS = ("pixels: int32, read: int32, write: int32, half: float32, read_span: float32, write_span: float32, "
          "limit: float32, epsilon: float32")
_BANK = ("size: int32, pixels: int32, half: float32, span: float32, limit: float32, epsilon: float32, "
         "inverse: int32")
_SIGNATURES = {
    "glimpse_forward": "canvas: float32[3], image: float32[3], looked: float32[2], drawn: float32[3], "
                       f"seen: float32[2], chances: float32[3], seen_rows: float32[3], {_GRIDS}",
    "glimpse_backward": "image: float32[3], looked: float32[2], chances: float32[3], seen_rows: float32[3], "
                        "d_drawn: float32[3]?, d_seen: float32[2]?, d_canvas: float32[3], d_image: float32[3]?, "
                        f"d_looked: float32[2]?, {_GRIDS}",
    "filterbank_forward": f"where: float32[2], rows: float32[3], columns: float32[3], {_BANK}",
    "filterbank_backward": "where: float32[2], d_rows: float32[3]?, d_columns: float32[3]?, d_where: float32[2], "
                           f"{_BANK}",
    "latent_forward": "statistics: float32[2], noise: float32[2], sample: float32[2], nats: float32[1], rows: int32, "
                      "latent: int32",
    "latent_backward": "statistics: float32[2], noise: float32[2], d_sample: float32[2]?, d_nats: float32[1]?, "
                       "nats_step: int32, d_statistics: float32[2]?, d_noise: float32[2]?, rows: int32, latent: int32"}


def every_setting() -> list[tuple[str, Mapping[str, int]]]:
    """Pairs of a source file and its macros."""
    return [(file, {}) for file in (GLIMPSE, FILTERBANK, LATENT)]


def dynamic_shared(entry: str) -> int:
    """Bytes of shared memory that a kernel is launched with, for images and grids as in the paper; else 0."""
    pixels, read, write = 28, 2, 5
    sizes = {"glimpse_forward": _shared_of_forward(pixels, read, write),
             "glimpse_backward": _shared_of_backward(pixels, read, write),
             **dict.fromkeys(("filterbank_forward", "filterbank_backward"), _shared_of_bank(write, pixels))}
    return sizes.get(entry, 0)


@cache
def _kernel(file: str, entry: str) -> Any:
    """A kernel, made at its first use: `extend.cuda` imports CuPy."""
    return extend.cuda.Kernel(file, entry, _SIGNATURES[entry])


def _refusal(be: Backend, shared: int, *arrays: Array) -> str | None:
    if be.dtype(arrays[0]) != "float32":
        return f"the kernel is for float32, not {be.dtype(arrays[0])}"
    if shared > _SHARED_BYTES:
        return f"{shared} bytes of filters and their gradients are more than {_SHARED_BYTES}"
    if not all(a.size for a in arrays):
        return "there are no values"
    return extend.cuda.too_large(*arrays)


def _half(pixels: int, centre: str) -> float:
    return (pixels if centre == "edge" else pixels + 1) / 2


def _span(pixels: int, points: int) -> float:
    return (pixels - 1) / (points - 1)


# A glimpse ------------------------------------------------------------------------------------------------

class _Glimpse(NamedTuple):
    image: Array
    looked: Array
    chances: Array
    seen_rows: Array
    numbers: tuple[Any, ...]
    """The last arguments of both kernels."""


def _shared_of_forward(pixels: int, read: int, write: int) -> int:
    return 4 * pixels * (4 * read + 3 * write)


def _shared_of_backward(pixels: int, read: int, write: int) -> int:
    return 4 * (pixels * (6 * read + 6 * write) + 6 * (read + write))


def _glimpse_supports(be: Backend, canvas: Array, image: Array, looked: Array, read: int, write: int,
                      **unused: Any) -> str | None:
    return _refusal(be, _shared_of_backward(canvas.shape[-1], read, write), canvas, image, looked)


def _glimpse_forward(be: Backend, canvas: Array, image: Array, looked: Array, read: int, write: int,
                     centre: str) -> tuple[tuple[Array, Array], _Glimpse]:
    cuda = extend.cuda
    canvas, image, looked = cuda.packed(canvas, image, looked)
    batch, pixels, _ = canvas.shape
    drawn, seen, chances, seen_rows = (cuda.empty(shape, canvas.dtype) for shape in (
        canvas.shape, (batch, 2 * read * read), canvas.shape, (batch, 2 * read, pixels)))
    numbers = (pixels, read, write, _half(pixels, centre), _span(pixels, read), _span(pixels, write), LIMIT, EPSILON)
    _kernel(GLIMPSE, "glimpse_forward")((batch,), (_THREADS,), (
        canvas, image, looked, drawn, seen, chances, seen_rows, *numbers),
        shared=_shared_of_forward(pixels, read, write))
    return (drawn, seen), _Glimpse(image, looked, chances, seen_rows, numbers)


def _glimpse_vjp(be: Backend, saved: _Glimpse, gouts: tuple[Array | None, Array | None],
                 needs: Sequence[bool]) -> list[Array | None]:
    image, looked, chances, seen_rows, numbers = saved
    cuda = extend.cuda
    d_canvas, d_image, d_looked = (
        cuda.empty(like.shape, like.dtype) if needed else None
        for like, needed in ((image, True), (image, needs[1]), (looked, needs[2])))
    _kernel(GLIMPSE, "glimpse_backward")((len(image),), (_THREADS,), (
        image, looked, chances, seen_rows, *cuda.packed(*gouts), d_canvas, d_image, d_looked, *numbers),
        shared=_shared_of_backward(*numbers[:3]))
    return [d_canvas if needs[0] else None, d_image, d_looked]


glimpse_on_cuda = Rule("cuda glimpse", _glimpse_forward, _glimpse_vjp, _glimpse_supports)


# The filters of a grid ------------------------------------------------------------------------------------

def _shared_of_bank(size: int, pixels: int) -> int:
    return 4 * (2 * size * pixels + 6 * size)


def _bank_supports(be: Backend, where: Array, size: int, pixels: int, **unused: Any) -> str | None:
    return _refusal(be, _shared_of_bank(size, pixels), where)


def _bank_forward(be: Backend, where: Array, size: int, pixels: int, centre: str,
                  inverse: bool) -> tuple[tuple[Array, Array], Any]:
    cuda = extend.cuda
    [where] = cuda.packed(where)
    rows, columns = (cuda.empty((len(where), size, pixels), where.dtype) for _ in range(2))
    numbers = (size, pixels, _half(pixels, centre), _span(pixels, size), LIMIT, EPSILON, int(inverse))
    _kernel(FILTERBANK, "filterbank_forward")((len(where),), (_THREADS,), (where, rows, columns, *numbers),
                                              shared=_shared_of_bank(size, pixels))
    return (rows, columns), (where, numbers)


def _bank_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, Array | None],
              needs: Sequence[bool]) -> tuple[Array | None]:
    where, numbers = saved
    if not needs[0]:
        return (None,)
    d_where = extend.cuda.empty((len(where), WHERE), where.dtype)
    _kernel(FILTERBANK, "filterbank_backward")((len(where),), (_THREADS,), (
        where, *extend.cuda.packed(*gouts), d_where, *numbers), shared=_shared_of_bank(*numbers[:2]))
    return (d_where,)


filterbank_on_cuda = Rule("cuda bank", _bank_forward, _bank_vjp, _bank_supports)


# A sample of the latent variables -------------------------------------------------------------------------

def _latent_supports(be: Backend, statistics: Array, noise: Array) -> str | None:
    return _refusal(be, 0, statistics, noise)


def _latent_grid(rows: int) -> tuple[tuple[int], tuple[int, int]]:
    return (-(-rows // _ROWS),), (_LANES, _ROWS)


def _latent_forward(be: Backend, statistics: Array, noise: Array) -> tuple[tuple[Array, Array], Any]:
    cuda = extend.cuda
    statistics, noise = cuda.packed(statistics, noise)
    sample, nats = cuda.empty(noise.shape, noise.dtype), cuda.empty(noise.shape[:1], noise.dtype)
    _kernel(LATENT, "latent_forward")(*_latent_grid(len(noise)), (statistics, noise, sample, nats, *noise.shape))
    return (sample, nats), (statistics, noise)


def _latent_vjp(be: Backend, saved: Any, gouts: tuple[Array | None, Array | None],
                needs: Sequence[bool]) -> list[Array | None]:
    gradients = [extend.cuda.empty(a.shape, a.dtype) if needed else None
                 for a, needed in zip(saved, needs, strict=True)]
    of_sample, of_nats = gouts
    step = 1
    if of_nats is not None and not any(of_nats.strides):  # one number, broadcast
        of_nats, step = of_nats[:1], 0
    _kernel(LATENT, "latent_backward")(*_latent_grid(len(saved[1])), (
        *saved, *extend.cuda.packed(of_sample, of_nats), step, *gradients, *saved[1].shape))
    return gradients


latent_on_cuda = Rule("cuda row", _latent_forward, _latent_vjp, _latent_supports)
