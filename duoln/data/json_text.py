"""Reads JSON that may be hostile: it limits the depth and the number of values, and refuses half characters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from duoln.data.bounded import read_whole
from duoln.errors import DataFormatError

DEEPEST = 64
"""The greatest depth of nested objects and lists."""
_MOST_VALUES = 1 << 24
"""The most values of a text; the captions of COCO have 10 million. A value takes some 70 bytes and may be written with
2."""


def parse_json(content: bytes) -> Any:
    """The value of a JSON text; every failure of the parser is a ValueError.

    Raises:
        ValueError: it is no JSON in UTF-8, nested more deeply than `DEEPEST`, of too many values, or with half a
            character (a lone surrogate).
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES} values")
    try:
        value = json.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        level = [child for parent in level for child in (parent.values() if isinstance(parent, dict) else parent)
                 if isinstance(child, dict | list)]
    if level:
        raise ValueError("nested too deeply")
    if b"\\ud" in content or b"\\uD" in content:
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # a UnicodeEncodeError is a ValueError
    return value


def json_of(where: object, content: bytes, kind: str = "JSON text") -> Any:
    """The value of a JSON text.

    Args:
        where: what errors name.
        content: the text.
        kind: the name of the format, for errors.

    Raises:
        DataFormatError: it is none, see `parse_json`.
    """
    try:
        return parse_json(content)
    except UnicodeDecodeError as error:
        raise DataFormatError(where, error.start, "JSON in UTF-8", f"byte {content[error.start]:#04x}") from error
    except json.JSONDecodeError as error:
        offset = len(error.doc[:error.pos].encode("utf-8"))
        what = "the end of the file" if error.pos >= len(error.doc.rstrip()) else error.msg
        raise DataFormatError(where, offset, f"a {kind}", f"{what} (line {error.lineno}, column {error.colno})"
                              ) from error
    except ValueError as error:  # too deep, too many, half a character, or a number of thousands of digits
        raise DataFormatError(where, 0, f"a {kind}", str(error)) from error


def read_json(path: Path, most: int, kind: str = "JSON text") -> Any:
    """The value of a JSON file of at most so many bytes.

    Raises:
        as `read_whole` and `json_of`.
    """
    return json_of(path, read_whole(path, most, kind), kind)
