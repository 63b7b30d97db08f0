"""Loaded by every Python that starts with this folder in PYTHONPATH: duoln comes from the copy, subprocesses too.

`MUTATIONS_ROOT` is the copy; with `MUTATIONS_RECORD`, a folder, the functions that are called are written there.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(os.environ["MUTATIONS_ROOT"])
FOLDERS = {"duoln": "duoln", **{f"duoln.{name}": name for name in ("kernels", "plugins", "examples")}}


class CopyFinder:
    """Finds duoln and its outside folders in the copy, before any installed one."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in FOLDERS:
            return None
        folder = ROOT / FOLDERS[name]
        return importlib.util.spec_from_file_location(name, folder / "__init__.py",
                                                      submodule_search_locations=[str(folder)])


# The finder of an editable install would give the parts of these packages from elsewhere.
sys.meta_path[:] = [CopyFinder, *(f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__"))]

if "MUTATIONS_RECORD" in os.environ:
    import traced

    traced.start()
