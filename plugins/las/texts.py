"""Lines of a transcript, with where each begins, for errors."""

from __future__ import annotations

from pathlib import Path

from duoln.data import read_whole
from duoln.errors import DataFormatError

_MAX_BYTES = 1 << 20
"""The transcripts of a chapter of LibriSpeech have some 20,000."""


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a text that are not empty, each with the byte at which it begins.

    Raises:
        DataError: the file cannot be read. DataFormatError: it is too large, or no text in UTF-8.
    """
    content = read_whole(path, _MAX_BYTES, "transcript")
    lines, offset = [], 0
    for line in content.split(b"\n"):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise DataFormatError(path, offset, "text in UTF-8", repr(line[:40])) from error
        if text:
            lines.append((offset, text))
        offset += len(line) + 1
    return lines
