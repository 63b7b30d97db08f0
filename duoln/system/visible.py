"""Makes texts from outside safe for a terminal or a picture."""

from __future__ import annotations

import contextlib
import sys
import unicodedata

_KEPT = "\n\t\u200c\u200d"
"""Invisible characters that are kept: line ends, tabs, and the joiners of several scripts."""


def visible(text: str) -> str:
    r"""The text in which the number replaces each character that controls a terminal or is invisible: controls such as
    escape (`\x1b`), marks that turn the direction of writing round (`\u202e`), and halves of surrogate pairs, which
    cannot be encoded. Spaces of any width stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT or unicodedata.category(c) == "Zs"
                   else c.encode("unicode_escape").decode("ascii") for c in text)


def say(text: str) -> None:
    """Write a line, or several, to stderr. One that cannot be written is lost: it does not decide what is computed."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(visible(f"duoln: {text}"), file=sys.stderr, flush=True)
