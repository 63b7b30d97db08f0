"""Numbers that the user gives in variables of the environment."""

from __future__ import annotations

import os


def count(name: str) -> int | None:
    """A variable's whole number above 0; None if it has none."""
    text = os.environ.get(name, "")
    return int(text) or None if text.isdecimal() else None
