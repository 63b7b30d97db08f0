"""What the tests of the recurrent rules of the CPU share: their variants, arguments and attributes."""

import numpy as np
import pytest
from ops.test_rnn import Problem

from duoln import ops
from duoln.kernels import native
from duoln.kernels.recurrent.cells import FUSED

WALKS = [*FUSED, pytest.param("lstm", "layer", marks=pytest.mark.inputs_before_the_walk,
                              id="lstm-layer, inputs before the walk")]
"""The same, and once more the LSTM of `layer`, with the product of few inputs made before its walk."""
COMPILED, PLAIN = "compiled walk", "fused steps"


def arguments_of(problem, dtype):
    """The operator's arrays in its order, with the bias and mask that may be missing."""
    arrays = [a.astype(dtype) for a in problem.arrays]
    head, rest = arrays[:3 + problem.n_states], arrays[3 + problem.n_states:]
    bias = rest.pop(0) if problem.has_bias else None
    return [*head, bias, problem.mask, *rest]


def make_arguments(cell, norm, rng, sizes, dtype, mask=None):
    """The same from sizes (time steps, rows, inputs, hidden units)."""
    steps, batch, n_in, hidden = sizes
    problem = Problem(cell, norm, rng, steps=steps, batch=batch, n_in=n_in, hidden=hidden)
    problem.mask = mask
    return arguments_of(problem, dtype)


def attributes(cell, norm, reverse=False, eps=1e-5, gradient_limit=None):
    """The attributes of an operator."""
    return {"norm": norm, "eps": eps, "reverse": reverse, "gradient_limit": gradient_limit}


def rule_of(cell, name):
    """A rule by its name, "composed" too."""
    return next(rule for rule in getattr(ops, cell).rules("numpy") if rule.name == name)


def fused_names():
    """The names of the fused rules that can run here."""
    return [PLAIN] if native.machine_refusal() else [COMPILED, PLAIN]


def results(rule, backend, arguments, attrs, gouts):
    """The outputs and the gradients of all float arrays."""
    outs, saved = rule.forward(backend, *arguments, **attrs)
    needs = [a is not None and a.dtype.kind == "f" for a in arguments]
    gradients = rule.vjp(backend, saved, tuple(gouts), needs)
    return [*outs, *(d for d, need in zip(gradients, needs, strict=True) if need)]


def gouts_of(cell, sizes, rng, dtype):
    """Gradients of all outputs of an operator."""
    steps, batch, _, hidden = sizes
    count = 2 if cell == "lstm" else 1
    shapes = [(steps, batch, hidden), *[(batch, hidden)] * count]
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def wide(arrays):
    """The same values in float64."""
    return [a.astype(np.float64) if a is not None and a.dtype.kind == "f" else a for a in arrays]
