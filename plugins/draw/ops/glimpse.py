"""A glimpse of DRAW: the decoder's state writes on the canvas and reads for the next glimpse."""

from __future__ import annotations

from duoln import ops
from duoln.errors import ShapeError
from duoln.extend import Tensor, check_room, derived, op
from duoln.plugins.draw.ops.grid import WHERE, Side, read_patches, write_patch


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
