"""Lines of handwriting, and the prepared files that hold them: an npz without pickles, of which nothing is believed."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np

from duoln.errors import DataError, DataFormatError

SPLITS = ("train", "valid", "test")
ARRAYS = {"dx": "i2", "dy": "i2", "pen_up": "u1", "offsets": "i8", "text": "U", "line_id": "U"}
"""What a prepared file holds, and the dtype of each array."""

_GREATEST_RATIO = 1032
"""How much DEFLATE can shrink at best: a member that claims more is lying."""
_MAX_BYTES = 1 << 30
_HEADER_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, SyntaxError, TokenError, RecursionError,
                  MemoryError, Warning)
"""What NumPy and Python's own parser, which it calls, raise for a header that is none."""
_WIDEST = 4096
"""Characters of the longest text or name that is believed."""


class Line(NamedTuple):
    """One line of handwriting."""

    name: str
    text: str
    offsets: np.ndarray
    """(points, 2): how far the pen moved, in units of the whiteboard, y downwards; the first point is (0, 0)."""
    pen_up: np.ndarray
    """(points,): 1 at the last point of each stroke."""


def path_of(root: Path, split: str) -> Path:
    """Where the prepared file of a split stands below a data folder."""
    return root / "handwriting" / f"iam_ondb_{split}.npz"


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    """Write a prepared file.

    Raises:
        DataError: it cannot be written.
    """
    ends = np.cumsum([0, *(len(line.pen_up) for line in lines)], dtype=np.int64)
    both = np.concatenate([np.zeros((0, 2)), *(line.offsets for line in lines)]).astype(np.int16)
    arrays: dict[str, Any] = {
        "dx": both[:, 0], "dy": both[:, 1],
        "pen_up": np.concatenate([np.zeros(0), *(line.pen_up for line in lines)]).astype(np.uint8), "offsets": ends,
        "text": np.array([line.text for line in lines], np.str_),
        "line_id": np.array([line.name for line in lines], np.str_)}
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.getvalue())
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_lines(path: Path) -> list[Line]:
    """The lines of a prepared file.

    Raises:
        DataError: the file is not there or cannot be read.
        DataFormatError: an array is missing, of another dtype or length, larger than the file can hold, or pickled;
            offsets that do not climb from 0 to the last point; values that cannot be strokes; a line without text,
            or with more characters than points.
    """
    found = _arrays(path)
    points = len(found["dx"])
    for name in ("dy", "pen_up"):
        if len(found[name]) != points:
            raise DataFormatError(f"{path}: {name}", 0, f"{points} values, as dx has", len(found[name]))
    offsets = found["offsets"]
    count = len(offsets) - 1
    if count < 1 or offsets[0] != 0 or offsets[-1] != points or (np.diff(offsets) < 2).any():
        steps = f", the smallest step {np.diff(offsets).min()}" if count >= 1 else ""
        ends = f"{offsets[0]} to {offsets[-1]}{steps}" if len(offsets) else "none"
        raise DataFormatError(f"{path}: offsets", 0, f"offsets that climb from 0 to {points} by 2 or more", ends)
    for name in ("text", "line_id"):
        if len(found[name]) != count:
            raise DataFormatError(f"{path}: {name}", 0, f"{count} lines, as the offsets have", len(found[name]))
    if found["pen_up"].max() > 1:
        position = int(np.argmax(found["pen_up"] > 1))
        raise DataFormatError(f"{path}: pen_up", position, "0 or 1", int(found["pen_up"][position]))
    both = np.stack((found["dx"], found["dy"]), axis=1)
    names, texts = _texts(path, "line_id", found["line_id"]), _texts(path, "text", found["text"])
    lines = [Line(name, text, both[a:b], found["pen_up"][a:b]) for name, text, a, b in
             zip(names, texts, offsets[:-1], offsets[1:], strict=True)]
    for line in lines:
        check_line(path, line)
    return lines


def check_line(path: Path, line: Line) -> None:
    """Raises DataFormatError for a line without text, or with fewer points than characters."""
    if not line.text.strip():
        raise DataFormatError(path, 0, f"a text for line {line.name}", "an empty one")
    if len(line.text) > len(line.pen_up):
        raise DataFormatError(path, 0, f"a point or more for each of the {len(line.text)} characters of line "
                              f"{line.name}", f"{len(line.pen_up)} points")


def _texts(path: Path, name: str, values: np.ndarray) -> list[str]:
    try:
        return [str(value) for value in values]
    except ValueError as error:  # four bytes that are no character
        raise DataFormatError(f"{path}: {name}", 0, "characters of Unicode", str(error)) from error


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            return {name: _array(path, archive, members.get(f"{name}.npy"), name) for name in ARRAYS}
    except FileNotFoundError as error:
        raise DataError(f"{path}: expected a prepared file, found nothing there") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError,
            struct.error) as error:
        raise DataFormatError(path, 0, "an undamaged npz file", f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo | None, name: str) -> np.ndarray:
    """One array, once its header is known to tell of no more than is really there."""
    where = f"{path}: {name}"
    if info is None:
        raise DataFormatError(path, 0, f"an array '{name}'", "none of that name")
    if info.file_size > min(info.compress_size * _GREATEST_RATIO, _MAX_BYTES):
        raise DataFormatError(where, 0, f"at most {min(info.compress_size * _GREATEST_RATIO, _MAX_BYTES)} bytes",
                              f"a claim of {info.file_size}")
    with archive.open(info) as raw:
        content = raw.read(info.file_size + 1)
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a header of Python 2 is none of ours
            shape, _, dtype = read(stream)
    except _HEADER_ERRORS as error:
        text = str(error).splitlines() or ["no reason"]
        raise DataFormatError(where, 0, "an npy header", f"{type(error).__name__}: {text[0]:.200}") from error
    wanted = ARRAYS[name]
    fits = dtype.kind == "U" and 0 < dtype.itemsize <= 4 * _WIDEST if wanted == "U" else dtype == np.dtype(wanted)
    if not fits or len(shape) != 1:
        kind = "unicode" if wanted == "U" else np.dtype(wanted).name
        raise DataFormatError(where, 0, f"{kind} values along one axis", f"{dtype} of shape {shape}")
    rest = len(content) - stream.tell()
    if prod(shape) * dtype.itemsize != rest:
        raise DataFormatError(where, stream.tell(), f"{prod(shape) * dtype.itemsize} bytes, as its header claims", rest)
    return np.frombuffer(content, dtype, shape[0], stream.tell()) if rest else np.zeros(shape, dtype)
