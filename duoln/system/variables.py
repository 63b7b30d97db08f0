"""Variables of the environment: whole numbers, and those that switch something on or off."""

from __future__ import annotations

import os

_MOST = (1 << 31) - 1
"""The largest int of C, for functions that take the number."""
_DIGITS = len(str(_MOST))

_SWITCHES = ("DUOLN_NATIVE", "DUOLN_GRAPH", "DUOLN_MALLOPT", "DUOLN_OFFLINE", "DUOLN_STRICT_PLUGINS",
             "DUOLN_DISABLE_PLUGIN_AUTOLOAD", "DUOLN_TRACEBACK")
_VALUES = {**dict.fromkeys(_SWITCHES, ("0", "1")), "DUOLN_RULES": ("composed",), "DUOLN_PROVE": ("0", "again"),
           "DUOLN_WALK": ("0", "1", "say")}


def read_positive(name: str) -> int | None:
    """A variable's whole number above 0, at most 2 ** 31 - 1; None if it has none."""
    text = os.environ.get(name, "")
    # A number of more digits is larger; Python refuses to read one of thousands.
    return min(int(text.lstrip("0")[:_DIGITS + 1] or 0), _MOST) or None if text.isascii() and text.isdecimal() else None


def check_switches() -> None:
    """Raises UsageError for a switch with none of its values, such as "off": it would not do what the user wants."""
    from duoln.errors import UsageError  # `import duoln` loads this module, and has no use for errors

    for name, values in _VALUES.items():
        value = os.environ.get(name)
        if value and value not in values:
            raise UsageError(f"[environment] {name}: expected {' or '.join(values)}, found {value!r}")
