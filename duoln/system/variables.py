"""Numbers that the user gives in variables of the environment."""

from __future__ import annotations

import os

_MOST = (1 << 31) - 1
"""What functions of C take as a number."""


def count(name: str) -> int | None:
    """A variable's whole number above 0, at most 2 ** 31 - 1; None if it has none."""
    text = os.environ.get(name, "")
    return min(int(text), _MOST) or None if text.isdecimal() else None
