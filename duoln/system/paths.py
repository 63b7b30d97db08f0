"""Paths that a user gives, in which "~" is the home folder (a shell leaves it after `--out=`), and the cache folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from duoln.errors import DataMissingError


def in_home(path: str | os.PathLike[str]) -> Path:
    """A path with the home folder in the place of "~", or that of another user in the place of "~name".

    A text that begins with "./" names a file whose own name begins with "~". Raises DataMissingError where there is no
    such user, or no home folder, as for a user whom the system does not know.
    """
    text = os.fspath(path)
    whole = os.path.expanduser(text)
    if text.startswith("~") and whole == text:
        raise DataMissingError(f"{text}: expected a home folder, found none; set HOME, or give the whole path "
                               f"(DUOLN_CACHE, --out); ./{text} is a name that begins with '~'")
    return Path(whole)


def cache_folder() -> Path:
    """The folder of what duoln can make or fetch again: DUOLN_CACHE, else `duoln` where this system keeps caches.

    Raises DataMissingError as `in_home`.
    """
    if os.environ.get("DUOLN_CACHE"):
        return in_home(os.environ["DUOLN_CACHE"])
    if sys.platform == "darwin":
        return in_home("~/Library/Caches/duoln")
    return in_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "duoln"


def path_argument(text: str) -> Path:
    """The type of a path on a command line, which is not empty, as an unset variable of a shell is."""
    from argparse import ArgumentTypeError

    if not text:
        raise ArgumentTypeError("expected a path, found an empty text")
    try:
        return in_home(text)
    except DataMissingError as error:
        raise ArgumentTypeError(str(error)) from error
