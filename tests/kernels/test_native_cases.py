"""The table of cases through every compiled kernel: for old CPUs, with sanitizers, by each compiler that is here."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import compiled_cases
import pytest
from conftest import PATIENCE

from duoln.kernels import native
from duoln.kernels.native import processor, toolchain

PROGRAM = Path(compiled_cases.__file__)
COMPILERS = [pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"there is no {name}"))
             for name in ("g++", "clang++")]
COMPILERS.append(pytest.param(f"{sys.executable} -m {toolchain.ZIG} c++", id=toolchain.ZIG, marks=pytest.mark.skipif(
    find_spec(toolchain.ZIG) is None, reason=f"there is no {toolchain.ZIG}")))
pytestmark = pytest.mark.minutes


def _run(*words):
    return subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, check=False, timeout=PATIENCE)


def _with_sanitizers(compiler):
    if sys.platform != "linux":
        pytest.skip("the sanitizers' library is loaded first, as Linux does it")
    probe = subprocess.run([*compiler.split(), *compiled_cases.SANITIZERS, "-x", "c++", "-shared", "-o", "/dev/null", "/dev/null"],
                           capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"{compiler} has no sanitizers: {probe.stderr.strip().splitlines()[-1]}")


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3", "native"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_kernel_is_right_for_each_cpu(compiler, march):
    if march != "native" and not processor.own_platform().endswith("x86_64"):
        pytest.skip(f"{march} is no CPU of this architecture")
    if processor.lacking(toolchain.target(toolchain.Compiler(tuple(compiler.split()), compiler), march).needs):
        pytest.skip(f"this CPU is no {march}")
    done = _run("--compiler", compiler, "--march", march)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    kernels = [file for file in native.sources() if not Path(file).is_absolute()]  # a plug-in may be loaded here
    assert f"{len(kernels)} kernels, rules compiled by " in done.stdout


@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_kernel_leaves_its_arrays_or_does_what_is_undefined(compiler):
    _with_sanitizers(compiler)
    done = _run("--compiler", compiler, "--sanitize")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
