"""Variables of the environment that switch something on or off: their values are 1 and 0."""

from __future__ import annotations

import os

from duoln.errors import UsageError

_SWITCHES = ("DUOLN_NATIVE", "DUOLN_GRAPH", "DUOLN_MALLOPT", "DUOLN_OFFLINE", "DUOLN_STRICT_PLUGINS",
             "DUOLN_DISABLE_PLUGIN_AUTOLOAD", "DUOLN_TRACEBACK")
_VALUES = {**dict.fromkeys(_SWITCHES, ("0", "1")), "DUOLN_RULES": ("composed",), "DUOLN_PROVE": ("0", "again"),
           "DUOLN_WALK": ("0", "1", "say")}


def check() -> None:
    """Whether each of them has a value that means something.

    Raises:
        UsageError: one has another value, such as "off"; it would not do what the user wants.
    """
    for name, values in _VALUES.items():
        value = os.environ.get(name)
        if value and value not in values:
            raise UsageError(f"[environment] {name}: expected {' or '.join(values)}, found {value!r}")
