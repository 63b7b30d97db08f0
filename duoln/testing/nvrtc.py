"""NVIDIA's compiler without a GPU or a driver: `pip install "duoln[kernels]"` brings it on Linux.

Its logs are kept from one process to the next, as compiled kernels are.
"""

from __future__ import annotations

import getpass
import hashlib
import importlib
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

KEPT = Path(tempfile.gettempdir()) / f"duoln-nvrtc-{getpass.getuser()}"


@cache
def version() -> str | None:
    """The compiler's version; None where there is none."""
    try:
        return ".".join(map(str, _nvrtc().getVersion()))
    except (ImportError, RuntimeError):
        return None


def _nvrtc() -> Any:
    return importlib.import_module("cupy_backends.cuda.libs.nvrtc")


def log(text: str, macros: Mapping[str, int], architecture: str) -> str:
    """The compiler's log for a text.

    Raises:
        AssertionError: it does not compile; the message has the log.
    """
    nvrtc = _nvrtc()
    options = (f"--gpu-architecture={architecture}", "--std=c++17", "-ftz=true", "--ptxas-options=-v",
               *(f"-D{k}={v}" for k, v in macros.items()))
    key = "\0".join((text, *options, *map(str, nvrtc.getVersion())))
    kept = KEPT / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.log"
    if kept.exists():
        return kept.read_text()
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
    except Exception as error:
        raise AssertionError(f"{architecture} {dict(macros)}: {nvrtc.getProgramLog(program)}") from error
    assert len(nvrtc.getCUBIN(program)) > 0
    made: str = nvrtc.getProgramLog(program)
    KEPT.mkdir(mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=KEPT, delete=False) as part:
        part.write(made)
    Path(part.name).replace(kept)
    return made
