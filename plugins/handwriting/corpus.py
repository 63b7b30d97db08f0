"""Lines of handwriting, and the prepared files that hold them: an npz without pickles, of which nothing is believed."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln.data import read_npz
from duoln.data.files import packed_or_not, search_folders
from duoln.data.npz import Expected, check_offsets, write_npz
from duoln.data.text import Characters
from duoln.errors import DataError, DataFormatError
from duoln.tasks import Dataset
from duoln.tasks.originals import absent, locate

ALPHABET = Characters(string.ascii_letters + " .!?")
"""The 57 classes of characters that the window reads."""
PADDING = -1
"""Not a class: its one-hot row is all 0, so it adds nothing to the window."""
SPLITS = ("train", "valid", "test")
WHOLE_CORPUS = 12_000
"""Lines from which on a prepared corpus is IAM-OnDB itself (12,179 lines) and not a part of it."""
ARRAYS = {"dx": Expected("i2", 1, "points"), "dy": Expected("i2", 1, "points"), "pen_up": Expected("u1", 1, "points"),
          "offsets": Expected("i8", 1), "text": Expected("U", 1, "lines"), "line_id": Expected("U", 1, "lines")}
"""The arrays of a prepared file."""


class Line(NamedTuple):
    """One line of handwriting."""

    name: str
    text: str
    offsets: np.ndarray
    """(points, 2): how far the pen moved, in units of the whiteboard, y downwards; the first point is (0, 0)."""
    pen_up: np.ndarray
    """(points,): 1 at the last point of each stroke."""


def path_of(root: Path, split: str) -> Path:
    """The prepared file of a split below a data folder."""
    return root / "handwriting" / f"iam_ondb_full_{split}.npz"


FILES = tuple(str(path_of(Path(), split)) for split in SPLITS)
"""Their places below a data folder."""


def find_lines(root: Path | None = None) -> Callable[[], tuple[Dataset, dict[str, list[Line]]]]:
    """The function that reads the prepared files of the first folder that has them.

    Raises:
        DataMissingError: no folder has any; the message says how to make them. DataError: one of the three is missing,
            or the corpus is there as it is distributed.
    """
    files = locate(FILES, root)
    if files is not None:
        return partial(_read_splits, files)
    how = "make it ready with `duoln data prepare handwriting --from DIR`: lineStrokes/, ascii/ and the lists in DIR"
    for folder in search_folders(root):
        if packed_or_not(folder / "handwriting" / "lineStrokes") is not None:
            raise DataError(f"{folder / 'handwriting'}: IAM-OnDB as it is distributed, which is not read while "
                            f"training; {how}")
    raise absent([str(path_of(Path(), "train"))], root, "IAM-OnDB is given out after registration only, at "
                 f"https://fki.tic.heia-fr.ch/databases/iam-on-line-handwriting-database: {how}")


def _read_splits(files: Sequence[Path]) -> tuple[Dataset, dict[str, list[Line]]]:
    sets = {split: read_lines(path) for split, path in zip(SPLITS, files, strict=True)}
    if sum(map(len, sets.values())) >= WHOLE_CORPUS:
        return Dataset("IAM-OnDB", "original"), sets
    return Dataset(f"IAM-OnDB, {len(sets['train']):,} lines", "substitute"), sets


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
    write_npz(path, arrays)


def read_lines(path: Path) -> list[Line]:
    """The lines of a prepared file.

    Raises:
        DataError: the file is not there or cannot be read.
        DataFormatError: an array is missing, of another dtype or length, larger than the file can hold, or pickled;
            offsets that do not climb from 0 to the last point; values that cannot be strokes; a line without text,
            or with more characters than points.
    """
    arrays = read_npz(path, ARRAYS)
    offsets = arrays["offsets"]
    check_offsets(f"{path}: offsets", offsets, len(arrays["dx"]), least=2)
    if len(arrays["text"]) != len(offsets) - 1:
        raise DataFormatError(f"{path}: text", 0, f"{len(offsets) - 1} lines, as the offsets have", len(arrays["text"]))
    if arrays["pen_up"].max() > 1:
        position = int(np.argmax(arrays["pen_up"] > 1))
        raise DataFormatError(f"{path}: pen_up", position, "0 or 1", int(arrays["pen_up"][position]))
    both = np.stack((arrays["dx"], arrays["dy"]), axis=1)
    lines = [Line(name, text, both[a:b], arrays["pen_up"][a:b]) for name, text, a, b in
             zip(arrays["line_id"].tolist(), arrays["text"].tolist(), offsets[:-1], offsets[1:], strict=True)]
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
