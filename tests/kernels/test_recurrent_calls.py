"""A small recurrent forward is made of Python calls; the fused NumPy rule keeps them few."""

import sys

import numpy as np
import pytest
from ops.test_rnn import Problem

from duoln import ops
from duoln.kernels import source

MOST = {"lstm": 70, "gru": 85, "rnn": 40}
"""Calls of functions of `kernels/` for five time steps."""


@pytest.mark.parametrize("cell", MOST)
def test_python_calls_of_a_small_forward(cell, rng, numpy_backend):
    p = Problem(cell, "layer", rng, steps=5, batch=3, n_in=3, hidden=8)
    arrays = [a.astype(np.float32) for a in p.arrays]
    first, norms = arrays[:3 + p.n_states], arrays[3 + p.n_states:]
    arguments = [*first, norms.pop(0) if p.has_bias else None, None, *norms]
    rule = getattr(ops, cell).rules("numpy")[0]
    attrs = {"norm": "layer", "eps": 1e-5, "eps_place": "inside", "reverse": False}
    attrs |= {"remat": False} if cell == "lstm" else {}
    rule.forward(numpy_backend, *arguments, **attrs)
    calls = []

    def count(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(str(source.FOLDER)):
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(count)
    try:
        rule.forward(numpy_backend, *arguments, **attrs)
    finally:
        sys.setprofile(None)
    assert 10 < len(calls) <= MOST[cell], calls
