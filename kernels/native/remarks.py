"""Lines on stderr about compiling. One that cannot be written is lost: it does not decide what is computed."""

from __future__ import annotations

import contextlib
import sys

from duoln.system.visible import visible


def say(text: str) -> None:
    """Write a line, or several; compilers' words may contain what controls a terminal."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(visible(f"duoln: {text}"), file=sys.stderr, flush=True)
