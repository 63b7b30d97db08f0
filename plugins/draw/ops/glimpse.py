"""A glimpse of DRAW: the decoder's state writes on the canvas and reads for the next glimpse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln import ops
from duoln.errors import ShapeError
from duoln.extend import Array, Backend, Launch, Rule, Tensor, check_room, derived, host, native, op
from duoln.plugins.draw.ops.grid import EPSILON, LIMIT, WHERE, Side, read_patches, write_patch


def split_look(looked: Tensor, write: int) -> tuple[Tensor, Tensor, Tensor]:
    """The grid to read (B, 5), the grid to write (B, 5), and the patch to write (B, write, write)."""
    patch = ops.reshape(looked[:, 2 * WHERE:], shape=(looked.shape[0], write, write))
    return looked[:, :WHERE], looked[:, WHERE:2 * WHERE], patch


@op("canvas: real[n, p, p], image: real[n, p, p], looked: real[n, where] -> canvas: like canvas, seen: like image")
def write_then_read(canvas: Tensor, image: Tensor, looked: Tensor, *, read: Side, write: Side) -> tuple[Tensor, Tensor]:
    """The use of a state of DRAW's decoder: it writes on the canvas, and reads for the next glimpse.

        c = canvas + write_patch(patch, where to write)
        seen = read_patches(image, image - sigmoid(c), where to read)

    Shape:
        canvas and image (B, P, P), looked (B, 10 + write^2): where to read, where to write, the patch by rows
        -> canvas (B, P, P), seen (B, 2 read^2).

    Raises:
        ShapeError: the sizes do not fit.
    """
    write_then_read.check(canvas, image, looked)
    check_room("write_then_read", canvas.backend, (canvas.shape[0], 2, read, max(read, canvas.shape[1])))
    if looked.shape[1] != 2 * WHERE + write * write:
        raise ShapeError(f"[write_then_read] expected looked {(canvas.shape[0], 2 * WHERE + write * write)}, "
                         f"found {looked.shape}")
    return write_then_read.apply(canvas, image, looked, read=read, write=write)


def _write_then_read(canvas: Tensor, image: Tensor, looked: Tensor, read: int, write: int) -> tuple[Tensor, Tensor]:
    read_at, write_at, patch = split_look(looked, write)
    canvas = canvas + write_patch(patch, write_at, pixels=canvas.shape[-1])
    return canvas, read_patches(image, image - ops.sigmoid(canvas), read_at, size=read)


write_then_read.add(derived(_write_then_read))


# On the CPU, compiled: a row of a glimpse stays in L1 from its filters on ------------------------------------

_TEXT = str(Path(__file__).with_name("glimpse"))
_KEPT = "chances: own[batch, pixels, line], filters: own, seen_rows: own"
_SIZES = "read: int64, write: int64, half: float64, limit: float64, epsilon: float64, threads: int32"

_VECTOR_BYTES = 64
"""The widest vectors of any CPU; a line of that many bytes is whole vectors of narrower ones."""

_look = Launch(_TEXT, "glimpse_forward", "canvas: real[batch, pixels, pixels], image: real[batch, pixels, pixels], "
                                         f"looked: own, seen: own, {_KEPT}, {_SIZES} -> drawn: like canvas")
_look_back = Launch(_TEXT, "glimpse_backward", f"image: own, looked: own, {_KEPT}, "
                                               "d_drawn: real[batch, pixels, pixels]?, d_seen: own?, "
                                               f"{_SIZES} -> d_canvas: like image, d_image: like image?, "
                                               "d_looked: like looked?")


class _Saved(NamedTuple):
    image: Array
    looked: Array
    chances: Array
    """sigmoid(canvas): (B, P, line), as in the other arrays a line being P values and some that fill a vector."""
    filters: Array
    """Columns, then rows, of the grid that reads and then of the grid that writes: (B, 2, read + write, line)."""
    seen_rows: Array
    """The two images after the row filters of the grid that reads: (B, 2 read, line)."""
    sizes: tuple[Any, ...]


def _supports(be: Backend, canvas: Array, image: Array, looked: Array, **unused: Any) -> str | None:
    return native.refusal(f"{_TEXT}.cpp", canvas.dtype) if canvas.size else "there are no values"


def _forward(be: Backend, canvas: Array, image: Array, looked: Array, read: int, write: int,
             ) -> tuple[tuple[Array, Array], _Saved]:
    image, looked = host.contiguous(image), host.contiguous(looked)
    batch, pixels = canvas.shape[:2]
    values = _VECTOR_BYTES // canvas.itemsize
    line = -(-pixels // values) * values
    sizes = (read, write, pixels / 2, LIMIT, EPSILON, native.threads_for(4 * canvas.nbytes))
    saved = _Saved(image, looked, host.empty((batch, pixels, line), canvas.dtype),
                   host.empty((batch, 2, read + write, line), canvas.dtype),
                   host.empty((batch, 2 * read, line), canvas.dtype), sizes)
    seen = host.empty((batch, 2 * read * read), canvas.dtype)
    drawn = _look[be.name](canvas, image, looked, seen, saved.chances, saved.filters, saved.seen_rows, *sizes)
    return (drawn, seen), saved


def _vjp(be: Backend, saved: _Saved, gouts: tuple[Array | None, Array | None],
         needs: Sequence[bool]) -> list[Array | None]:
    d_drawn, d_seen = (None if g is None else host.contiguous(g) for g in gouts)
    d_canvas, d_image, d_looked = _look_back[be.name](
        saved.image, saved.looked, saved.chances, saved.filters, saved.seen_rows, d_drawn, d_seen, *saved.sizes,
        d_image=needs[1], d_looked=needs[2])
    return [d_canvas if needs[0] else None, d_image, d_looked]


write_then_read_compiled = Rule("compiled", _forward, _vjp, _supports)
