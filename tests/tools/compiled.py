"""Processes that compile kernels, for the tests of compiling: one kernel, without optimisation.

It takes two seconds, so the `c++` of these processes remembers what the compiler made of a text, a line and a version.
"""

from __future__ import annotations

import functools
import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import PATIENCE

from duoln.kernels import native
from duoln.kernels.native import toolchain

FEW = """
from duoln.kernels.native import storage, toolchain
toolchain.FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in toolchain.FLAGS)
storage.units = lambda: [storage.Unit("norm/norm.cpp", "float32")]
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


_REMEMBERS = """#!/bin/sh
case "$*" in
*-dM*|--version) exec {compiler} "$@" ;;
esac
for word; do
    case "$before" in -o) output=$word ;; esac
    case "$word" in *.cpp) text=$word ;; */*) ;; *) line="$line $word" ;; esac
    before=$word
done
made={folder}/$( (cat "$text"; echo "$line"; {compiler} --version) | sha256sum | cut -c1-24).so
[ -f $made ] || {{ {compiler} "$@" && cp "$output" $made.$$ && mv $made.$$ $made; exit; }}
exec cp $made "$output"
"""


@functools.cache
def _remembering() -> Path:
    """A folder with a `c++` that compiles nothing twice, in this run of the tests or the next."""
    folder = Path(tempfile.gettempdir()) / f"duoln-test-compiler-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder / f"c++.{os.getpid()}"
    made.write_text(_REMEMBERS.format(compiler=shutil.which("c++"), folder=folder))
    made.chmod(0o700)
    return made.replace(folder / "c++").parent


def remembering_compiler() -> toolchain.Compiler | None:
    """The same for this process."""
    real = native.compiler()
    return real and real._replace(command=(str(_remembering() / "c++"),))


def run(folder: Path, program: str = PROGRAM, before: str = "", **variables: object) -> subprocess.CompletedProcess:
    """A process with its cache in a folder; it prints the rule of layer norm, a value's bytes, and what is said of both."""
    return subprocess.run([sys.executable, "-c", FEW + before + program], capture_output=True, text=True, check=True,
                          timeout=PATIENCE, env=environment(folder, **variables))


def environment(folder: Path, **variables: object) -> dict[str, str]:
    """The variables of a process whose cache is in a folder."""
    ours = {name: value for name, value in os.environ.items() if name != "DUOLN_KERNELS"}
    if shutil.which("c++"):
        ours["PATH"] = f"{_remembering()}{os.pathsep}{ours['PATH']}"
    return {**ours, "DUOLN_CACHE": str(folder), **{name: str(value) for name, value in variables.items()}}


def without_package(folder: Path) -> str:
    """The PYTHONPATH of a process that has no compiler of the package ZIG, whether it is installed or not."""
    made = folder / "no-compiler" / toolchain.ZIG
    made.mkdir(parents=True)
    (made / "__init__.py").write_text("")
    return python_path(made.parent)


def python_path(folder: Path) -> str:
    """A PYTHONPATH on which a folder comes first."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


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
*-dM*|*trial.cpp*) exec c++ "$@" ;;
*-o*) echo compiles >> {log}; {compile_line} ;;
esac
""")
    path.chmod(0o755)
    return path
