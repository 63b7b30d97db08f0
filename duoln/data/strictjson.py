"""Values as JSON that every reader takes: the format knows no NaN, no infinity and no half of a character.

A number that is not finite becomes null, and its object says why: `{"loss": NaN}` is written as
`{"loss": null, "not_finite": {"loss": "nan"}}`. `revive` makes the numbers again. A byte of a command line that is no
UTF-8 is half a character in Python; it becomes its escape in letters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

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
        strict = {_whole(key): _strict(item, own, key) for key, item in value.items()}
        if REASONS in strict and (own or _reasons_of(strict)):
            raise ValueError(f"expected another name than {REASONS!r} beside numbers that are not finite")
        return {**strict, REASONS: own} if own else strict
    if isinstance(value, list | tuple):
        return [_strict(item, reasons, f"{place}[{k}]") for k, item in enumerate(value)]
    return _whole(value) if isinstance(value, str) else value


def _whole(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
