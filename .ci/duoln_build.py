"""The build backend: setuptools, whose editable installs Python here finds before a folder named duoln.

A clone is such a folder, without an `__init__.py`. For a script beside it the search of `sys.path` takes the clone for
a namespace package, which is empty, and setuptools' finder would be asked after it (pypa/setuptools#3557). Here the
finder is asked first. An install that is a plain path, as in the mode "strict", needs nothing.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

_FIRST = "import sys; sys.meta_path.sort(key=lambda finder: getattr(finder, '__module__', None) != '{module}')"
"""A sort keeps the order of all other finders."""


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Write the wheel of an editable install, and return the name of its file."""
    name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    path = Path(wheel_directory, name)
    with ZipFile(path) as wheel:
        files = {entry: wheel.read(entry) for entry in wheel.namelist()}
    [start] = [entry for entry in files if entry.endswith(".pth")]
    [record] = [entry for entry in files if entry.endswith(".dist-info/RECORD")]
    line = files[start].decode().strip()
    if line.startswith("import "):
        module = line.removeprefix("import ").partition(";")[0]
        files[start] = f"{line}; {_FIRST.format(module=module)}\n".encode()
        rows = [row for row in files[record].decode().splitlines() if not row.startswith(f"{start},")]
        files[record] = "\n".join([*rows, _row(start, files[start]), ""]).encode()
        with ZipFile(path, "w", ZIP_DEFLATED) as wheel:
            for entry, content in files.items():
                wheel.writestr(entry, content)
    return name


def _row(entry: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{entry},sha256={digest},{len(content)}"
