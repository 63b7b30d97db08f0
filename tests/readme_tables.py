"""The tables of READMEs that come from kept runs. Each stands between two comments, the first of which is its command:

    <!-- duoln report results/small --markdown -->
    <!-- end -->

Paths are relative to the README's folder.

    python tests/readme_tables.py          write them all anew
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(<!-- duoln (?P<command>report .*?--markdown.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def readmes() -> Iterator[Path]:
    """The READMEs that may have such tables."""
    yield from sorted(path for folder in ("plugins", "duoln", "examples") for path in (ROOT / folder).rglob("README.md"))


def renewed(readme: Path) -> str:
    """The text of a README with its tables made anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}{_output(match['command'], readme.parent)}{match[3]}",
                      readme.read_text(encoding="utf-8"))


def _output(command: str, folder: Path) -> str:
    from duoln.cli import main

    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(shlex.split(command))
    if code:
        raise SystemExit(f"{folder}: duoln {command}: expected exit code 0, found {code}")
    return out.getvalue()


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "200")
    for path in readmes():
        path.write_text(renewed(path), encoding="utf-8")
