"""Lines of a text file, plain or gzipped, read one by one: a line is what ends with a newline byte, and no longer."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from duoln.errors import DataError, DataFormatError, DataMissingError

LONGEST = 1 << 22
"""Bytes of the longest line that is believed."""


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers from 1, without what ends them.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: damaged gzip, an endless line, or bytes that are not of the encoding; the message names
            the line.
    """
    number = 0
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if zipped else raw
            while line := file.readline(LONGEST + 1):
                number += 1
                if len(line) > LONGEST:
                    raise at_line(path, number, f"a line of at most {LONGEST} bytes", "a longer one")
                yield number, _decoded(path, number, line, encoding).rstrip("\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise at_line(path, number + 1, "an undamaged gzip stream", f"{type(error).__name__}: {error}") from error
    except FileNotFoundError as error:
        raise DataMissingError(f"{path}: expected a text file, found nothing there") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def at_line(path: Path, number: int, expected: object, found: object, offset: int = 0) -> DataFormatError:
    """The error of a line; `offset` is the byte of the line."""
    return DataFormatError(f"{path}: line {number}", offset, expected, found)


def _decoded(path: Path, number: int, line: bytes, encoding: str) -> str:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        found = f"bytes {error.object[error.start:error.start + 4]!r}"
        raise at_line(path, number, f"text in {encoding.upper()}", found, error.start) from error
