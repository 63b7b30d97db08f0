"""Values as JSON that every reader takes: the format knows no NaN and no infinity.

A number that is not finite becomes null, and its object says why: `{"loss": NaN}` is written as
`{"loss": null, "not_finite": {"loss": "nan"}}`. `revive` makes the numbers again.
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
        ValueError: it holds itself.
    """
    try:
        # Delete is in ASCII, and a control character all the same.
        return json.dumps(_strict(value, {}, ""), indent=indent, allow_nan=False).replace("\x7f", "\\u007f")
    except RecursionError:
        raise ValueError("expected a value that JSON can hold, found one that holds itself, or nested too deeply"
                         ) from None


def revive(value: Any) -> Any:
    """Put the numbers that are not finite back into a value that `json.loads` read from the text of `dumps`."""
    if isinstance(value, list):
        return [revive(item) for item in value]
    if not isinstance(value, dict):
        return value
    reasons = value.get(REASONS)
    named = reasons if isinstance(reasons, dict) else {}
    return {key: float(named[key]) if item is None and named.get(key) in _WORDS else revive(item)
            for key, item in value.items() if key != REASONS or item is not named}


_WORDS = ("nan", "infinity", "-infinity")




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
        strict = {key: _strict(item, own, key) for key, item in value.items()}
        return {**strict, REASONS: own} if own else strict
    if isinstance(value, list | tuple):
        return [_strict(item, reasons, f"{place}[{k}]") for k, item in enumerate(value)]
    return value
