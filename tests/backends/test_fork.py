"""A forked child has one thread: the rules work in it as in its parent, or say why they cannot."""

import os
import subprocess
import sys
from textwrap import dedent

import pytest
from conftest import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

_PROGRAM = """
    import os, sys, threading, warnings
    import numpy as np
    import duoln
    from duoln import nn, ops
    from duoln.kernels import host
    from duoln.randomness import Stream

    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork beside threads: it is the subject
    be = duoln.backend(sys.argv[1])
    rng = np.random.default_rng(0)
    x = duoln.tensor(rng.standard_normal((600, 1000)).astype(np.float32), be)
    gain, bias = duoln.tensor(np.ones(1000, np.float32), be), duoln.tensor(np.zeros(1000, np.float32), be)
    gru = nn.GRU(16, 128, norm="layer")
    weights = duoln.to_tensors(gru.init(Stream(0, "init")), be)
    sequence = duoln.tensor(rng.standard_normal((140, 128, 16)).astype(np.float32), be)

    def values():
        loss = duoln.value_and_grad(lambda t: ops.sum(ops.square(ops.layer_norm(t, gain, bias))))
        return [float(np.sum(np.abs(loss(x)[1].numpy()), dtype=np.float64)),
                float(np.sum(np.abs(gru(weights, sequence)[0].numpy()), dtype=np.float64))]

    def in_child(report):
        child = os.fork()
        if child == 0:
            try:
                print(report(), flush=True)
                os._exit(0)
            except BaseException as error:
                print(type(error).__name__, error, flush=True)
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def _run(body, backend="numpy"):
    done = subprocess.run([sys.executable, "-c", dedent(_PROGRAM) + dedent(body), backend], capture_output=True,
                          text=True, timeout=PATIENCE, check=False, env={**os.environ, "DUOLN_THREADS": "2",
                                                                    "OPENBLAS_NUM_THREADS": "2"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_a_child_of_a_process_whose_pool_was_used():
    lines = _run("""
        print(values(), flush=True)
        print(in_child(values), in_child(values))
    """)
    parent, *children, codes = lines
    assert children == [parent, parent] and codes == "0 0"


def test_mlx_in_a_child_is_a_named_error():
    pytest.importorskip("mlx.core")
    lines = _run("""
        print(values()[0] > 0, flush=True)
        print(in_child(values))
    """, "mlx")
    assert lines[0] == "True" and lines[2] == "1"
    assert lines[1].startswith("BackendError [mlx] expected the process") and "spawn" in lines[1]
