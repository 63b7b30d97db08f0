"""Where duoln keeps what it can make or fetch again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """DUOLN_CACHE, else the folder `duoln` where this system keeps caches."""
    if os.environ.get("DUOLN_CACHE"):
        return Path(os.path.expanduser(os.environ["DUOLN_CACHE"]))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "duoln"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duoln"
