"""JSON. What is read may be hostile: depth and number of values are limited. What is written every reader takes.

The format knows no NaN, no infinity and no half of a character. A number that is not finite becomes null, and its
object says why: `{"loss": NaN}` is written as `{"loss": null, "not_finite": {"loss": "nan"}}`; `revive` makes it again.
A byte of a command line that is no UTF-8 is half a character in Python; it becomes its escape in letters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duoln.data.bounded import read_whole
from duoln.errors import DataFormatError

DEEPEST = 64
"""The greatest depth of nested objects and lists."""
_MOST_VALUES = 1 << 24
"""The most values of a text; the captions of COCO have 10 million. A value takes some 70 bytes and may be written with
2."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} twice in one object")
    return result


def parse_json(content: bytes) -> Any:
    """The value of a JSON text; every failure of the parser is a ValueError.

    Raises:
        ValueError: it is no JSON in UTF-8, nested more deeply than `DEEPEST`, of too many values, with a key
            twice in one object, or with half a character (a lone surrogate).
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES} values")
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_object)
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
    except ValueError as error:  # too deep, too many, a key twice, half a character, or a number of thousands of digits
        raise DataFormatError(where, 0, f"a {kind}", str(error)) from error


def read_json(path: Path, most: int, kind: str = "JSON text") -> Any:
    """The value of a JSON file of at most so many bytes.

    Raises:
        as `read_whole` and `json_of`.
    """
    return json_of(path, read_whole(path, most, kind), kind)


# Strict JSON --------------------------------------------------------------------------------------------

REASONS = "not_finite"
"""The key under which an object names its values that JSON cannot hold."""


def dumps(value: Any, indent: int | None = None) -> str:
    """A value as JSON text, in ASCII.

    Raises:
        TypeError: it holds something that JSON cannot, such as a set or a key that is no text.
        ValueError: it holds itself, or an object that `revive` would take for its own reasons.
    """
    try:
        # Delete is in ASCII, and a control character all the same.
        return json.dumps(_strict(value, {}, ""), indent=indent, allow_nan=False).replace("\x7f", "\\u007f")
    except RecursionError:
        raise ValueError("expected a value that JSON can hold, found one that holds itself, or nested too deeply"
                         ) from None


def revive(value: Any) -> Any:
    """Put the numbers that are not finite back into a value that `json.loads` read from the text of `dumps`."""
    return _revived(value, {}, "")


def _revived(value: Any, reasons: Mapping[str, str], place: str) -> Any:
    """The value with the numbers of which `reasons`, of the nearest object, has the place and name."""
    if value is None and place in reasons:
        return float(reasons[place])
    if isinstance(value, list):
        return [_revived(item, reasons, f"{place}[{k}]") for k, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    own = _reasons_of(value)
    return {key: _revived(item, own, key) for key, item in value.items() if item is not own}


_WORDS = ("nan", "infinity", "-infinity")


def _reasons_of(value: Mapping[str, Any]) -> Mapping[str, str]:
    """The reasons of an object's null values; none if what has their name is something else."""
    reasons = value.get(REASONS)
    is_ours = isinstance(reasons, dict) and reasons and all(word in _WORDS for word in reasons.values())
    return reasons if isinstance(reasons, dict) and is_ours else {}


def _word(number: float) -> str:
    return "nan" if math.isnan(number) else "infinity" if number > 0 else "-infinity"


def _strict(value: Any, reasons: dict[str, str], place: str) -> Any:
    """The value with null for each number that is not finite; `reasons`, of the nearest object, gets its place and
    name.
    """
    if isinstance(value, float) and not math.isfinite(value):
        reasons[place] = _word(value)
        return None
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"expected texts as keys, found {next(k for k in value if not isinstance(k, str))!r:.60}")
        own: dict[str, str] = {}
        strict = {_escape_surrogates(key): _strict(item, own, key) for key, item in value.items()}
        if REASONS in strict and (own or _reasons_of(strict)):
            raise ValueError(f"expected another name than {REASONS!r} beside numbers that are not finite")
        return {**strict, REASONS: own} if own else strict
    if isinstance(value, list | tuple):
        return [_strict(item, reasons, f"{place}[{k}]") for k, item in enumerate(value)]
    return _escape_surrogates(value) if isinstance(value, str) else value


def _escape_surrogates(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
