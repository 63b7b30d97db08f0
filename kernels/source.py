"""The text of a kernel, into which the headers of this folder are inserted.

A file is named by its path below this folder, or by its whole path where a plug-in brings it.

CuPy's disk cache identifies a kernel by its text and options, but not by the headers that it includes. A header that is
included by name could therefore change without a new compilation.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
_ENTRY = re.compile(r'extern "C" __global__ void (?:[A-Z_]+\s+|__\w+__\([^)]*\)\s+)?(\w+)\(')
_OURS = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"[ \t]*$', re.M)


@cache
def text(file: str) -> str:
    """The source of `kernels/<file>`; each header is inserted where it is first included.

    A header is looked for beside the file that includes it, then in `kernels/`.

    Raises:
        FileNotFoundError: the file or a header that it includes does not exist.
    """
    return _pasted(FOLDER / file, set())


def metal(file: str) -> tuple[str, str]:
    """The header and the body of a Metal kernel: the included text, and the text after the last `#include` line.

    MLX writes the signature around the body, so it needs the text outside the function separately.
    """
    own = (FOLDER / file).read_text(encoding="utf-8")
    cut = max((include.end() for include in _OURS.finditer(own)), default=0)
    whole = text(file)
    body = own[cut:]
    return whole.removesuffix(body), body


def digest(file: str) -> str:
    """The SHA-256 of that text, in hexadecimal; it identifies the source of a timing."""
    return hashlib.sha256(text(file).encode()).hexdigest()


def entries(file: str) -> list[str]:
    """The names of the kernels of a CUDA source.

    Raises:
        LookupError: it has none.
    """
    names = _ENTRY.findall(text(file))
    if not names:
        raise LookupError(f"[source] {file}: expected a kernel, found none")
    return names


def _pasted(path: Path, seen: set[Path]) -> str:
    seen.add(path)
    own = path.read_text(encoding="utf-8")
    pieces, last = [f'#line 1 "{path.name}"\n'], 0
    for include in _OURS.finditer(own):
        pieces.append(own[last:include.start()])
        beside = path.parent / include.group(1)
        header = (beside if beside.is_file() else FOLDER / include.group(1)).resolve()
        if header not in seen:
            pieces.append(_pasted(header, seen))
        pieces.append(f'\n#line {own.count(chr(10), 0, include.end()) + 2} "{path.name}"')
        last = include.end()
    return "".join((*pieces, own[last:]))
