"""Where duoln keeps what it can make or fetch again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from duoln.errors import DataMissingError


def cache_folder() -> Path:
    """DUOLN_CACHE, else the folder `duoln` where this system keeps caches.

    Raises:
        DataMissingError: that is in the home folder, and there is none.
    """
    if os.environ.get("DUOLN_CACHE"):
        return in_home(os.environ["DUOLN_CACHE"])
    if sys.platform == "darwin":
        return in_home("~/Library/Caches/duoln")
    return in_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "duoln"


def in_home(path: str) -> Path:
    """A path with the home folder in the place of "~".

    Raises:
        DataMissingError: there is no home folder, as for a user whom the system does not know.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataMissingError(f"{path}: expected a home folder, found none; set HOME, or DUOLN_CACHE to a folder"
                               ) from error
