"""What the programs of the parts share: their options, and a JSON file that is written again after every figure.

So a part that is stopped at its limit keeps what it has measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duoln.data import strictjson
from duoln.system.filesystem import write_atomically
from duoln.system.paths import path_argument


def options(module: str, what: str) -> argparse.ArgumentParser:
    """The options that every part has."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=what)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--json", type=path_argument, required=True, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it works, not how fast")
    return parser


def save(content: Mapping[str, Any], file: Path) -> None:
    """Write what there is so far."""
    write_atomically(file, f"{strictjson.dumps(content, indent=1)}\n".encode())
