"""Reads a text of the user's own."""

from __future__ import annotations

import codecs
from pathlib import Path

from duoln.core.miscalled import explained
from duoln.data.bounded import Unpacked, opened
from duoln.errors import DataFormatError, DtypeError, UsageError

_MOST_BYTES = 1 << 25
"""A text takes up to four bytes a character, and its lines are made again."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@explained
def read_text(path: Path, encoding: str = "utf-8", most: int = _MOST_BYTES) -> str:
    r"""The text of a file, or of a gzipped one, with `\n` at the end of each line, whatever ends them in the file.

    A mark of the byte order at the beginning is no part of the text.

    Args:
        path: the file.
        encoding: one that Python knows, such as "utf-8" or "latin-1".
        most: the most bytes that the file may have, unpacked.

    Raises:
        DataMissingError: there is no such file. DataError: it cannot be read.
        DataFormatError: it is empty, larger than `most`, or no text in this encoding; the message names the first wrong
            byte.
        UsageError: there is no such encoding.
    """
    _check_encoding(encoding)
    with opened(path, "text") as raw:
        content = Unpacked(path, raw, most).read()
    if not content:
        raise DataFormatError(path, 0, "a text", "an empty file")
    text = _decoded(path, content, encoding)
    zero = text.find("\0")
    if zero >= 0:
        offset = len(text[:zero].encode(encoding))
        raise DataFormatError(path, offset, f"a text in {encoding}", "a zero byte, which no text has")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _check_encoding(encoding: str) -> None:
    if not isinstance(encoding, str):
        raise DtypeError(f"[read_text] encoding: expected a text, found {type(encoding).__name__}")
    try:
        b"a".decode(encoding, "ignore")
    except (LookupError, ValueError) as error:
        raise UsageError("[read_text] encoding: expected one of text that Python knows, such as utf-8 or latin-1; "
                         f"found {encoding!r}") from error


def _decoded(path: Path, content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        actual = f"byte {content[error.start]:#04x}"
        if content.startswith(_UTF_16):
            actual += '; it begins as a text in UTF-16 does: give encoding="utf-16"'
        raise DataFormatError(path, error.start, f"a text in {encoding}", actual) from error
    except UnicodeError as error:  # some codecs do not tell the place
        raise DataFormatError(path, 0, f"a text in {encoding}", str(error)) from error
