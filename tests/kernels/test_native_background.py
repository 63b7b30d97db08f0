"""Kernels are compiled beside the program: it waits for the one that it asks for, and nothing is left when it ends."""

import subprocess
import sys

import pytest
from compiled import environment, libraries, make_compiler, run
from conftest import PATIENCE
from processes import wait_until_gone

from duoln.kernels import native

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

FLAGS = """
from duoln.kernels.native import loading, storage, toolchain, background
toolchain.FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in toolchain.FLAGS)
"""
"""Two kernels are begun, the second of which does not end."""
ASKS = FLAGS + """
import duoln, os, sys, time
import numpy as np
from duoln import ops
from duoln.kernels import native
duoln.backend("numpy")
storage.units = lambda: [storage.Unit(file, "float32") for file in ("softmax/softmax.cpp", "norm/norm.cpp")]
native.foresee(lambda x: ops.softmax(ops.layer_norm(x)))
assert background.is_at_work()
native.library("norm/norm.cpp", np.dtype(np.float32))
"""
SLOW = "case \"$*\" in *softmax*) echo $$ > {folder}/part; exec sleep 100000 ;; *) exec c++ \"$@\" ;; esac"


def _compiler(tmp_path):
    return make_compiler(tmp_path / "c++", tmp_path / "log", SLOW.format(folder=tmp_path))


def _run(tmp_path, program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=PATIENCE,
                          env=environment(tmp_path / "cache", DUOLN_CXX=_compiler(tmp_path), DUOLN_THREADS=2))


def _is_gone(tmp_path):
    return wait_until_gone([int((tmp_path / "part").read_text())])


def test_a_program_goes_on_beside_a_compiler_which_ends_with_it(tmp_path):
    done = _run(tmp_path, ASKS + "print(sorted(unit.file for unit in loading._state.libraries), background.is_at_work())")
    assert done.stdout == "['norm/norm.cpp'] True\n", done.stderr
    assert _is_gone(tmp_path) and not list((tmp_path / "cache" / "native").glob("building-*"))
    assert len(libraries(tmp_path / "cache")) == 1 and done.stderr.count("compiling") == 1


@pytest.mark.long
def test_a_program_that_asks_for_no_kernel_compiles_nothing(tmp_path):
    done = run(tmp_path, FLAGS + """
import duoln
from duoln import nn, ops, optim
net = nn.Sequential(nn.Linear(3, 4), nn.LSTM(4, 5, norm="layer"))
params = duoln.to_tensors(net.init(0), "numpy")
slots = optim.Adam(learning_rate=0.1).init(params)
step = duoln.compile(lambda p, x: ops.mean(net(p, x)[0]))
""")
    assert not done.stderr and not libraries(tmp_path)
