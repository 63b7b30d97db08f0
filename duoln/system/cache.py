"""Where duoln keeps what it can make or fetch again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from duoln.system.paths import in_home


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
