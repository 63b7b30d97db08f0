"""The fields of tuples with names, as `help` shows them."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


def fields_in_words(kind: T) -> T:
    """Let `help` show the type and the default of each field of a NamedTuple, and not its number."""
    of_kind: Any = kind
    for name, annotation in of_kind.__annotations__.items():
        text = getattr(annotation, "__forward_arg__", annotation)
        words = text if isinstance(text, str) else inspect.formatannotation(text)
        if name in of_kind._field_defaults:
            words += f", by default {of_kind._field_defaults[name]!r}"
        getattr(kind, name).__doc__ = words
    return kind
