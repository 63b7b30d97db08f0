"""Numbers that the user gives in variables of the environment."""

from __future__ import annotations

import os

_MOST = (1 << 31) - 1
"""What functions of C take as a number."""


_DIGITS = len(str(_MOST))


def count(name: str) -> int | None:
    """A variable's whole number above 0, at most 2 ** 31 - 1; None if it has none."""
    text = os.environ.get(name, "")
    # A number of more digits is larger; Python refuses to read one of thousands.
    return min(int(text.lstrip("0")[:_DIGITS + 1] or 0), _MOST) or None if text.isascii() and text.isdecimal() else None
