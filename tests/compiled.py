"""Processes that compile kernels, for the tests of compiling: one kernel, without optimisation, which takes a second."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import PATIENCE

FEW = """
from duoln.kernels.native import loading, storage, toolchain
toolchain.FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in toolchain.FLAGS)
loading.COMMON = ()
storage.sources = lambda: ["layer_norm/layer_norm.cpp"]
"""
PROGRAM = """
import numpy as np, duoln
from duoln import ops
from duoln.kernels import native
x = duoln.tensor(np.arange(12, dtype=np.float32).reshape(3, 4) ** 2, "numpy")
print(ops.layer_norm.explain(x, None, None)[0], "|", ops.layer_norm(x).numpy().tobytes().hex(), "|", native.facts(), "|",
      native.summary())
"""
COMPILED = "'compiled', 'runs'"


def run(folder: Path, program: str = PROGRAM, before: str = "", **variables: object) -> subprocess.CompletedProcess:
    """A process with its cache in a folder; it prints the rule of layer norm, a value's bytes, and what is said of both."""
    return subprocess.run([sys.executable, "-c", FEW + before + program], capture_output=True, text=True, check=True,
                          timeout=PATIENCE, env=environment(folder, **variables))


def environment(folder: Path, **variables: object) -> dict[str, str]:
    """The variables of a process whose cache is in a folder."""
    ours = {name: value for name, value in os.environ.items() if name != "DUOLN_KERNELS"}
    return {**ours, "DUOLN_CACHE": str(folder), **{name: str(value) for name, value in variables.items()}}


def values(done: subprocess.CompletedProcess) -> str:
    """The bytes of the value that a process printed."""
    return done.stdout.split("|")[1]


def libraries(folder: Path) -> list[Path]:
    """The libraries in a cache."""
    return sorted((folder / "native").glob("*.so"))


def make_compiler(path: Path, log: Path, compile_line: str) -> Path:
    """A compiler of one line of shell, which writes a line to a log whenever it compiles."""
    path.write_text(f"""#!/bin/sh
case "$*" in
--version) echo 'a compiler 1.0' ;;
*-dM*) exec c++ "$@" ;;
*-o*) echo compiles >> {log}; {compile_line} ;;
esac
""")
    path.chmod(0o755)
    return path
