"""What the tests of the recurrent rules of the CPU share: their variants, arguments and attributes."""

import numpy as np
import pytest
from ops.test_rnn import Problem

from duoln import ops
from duoln.kernels import native
from duoln.kernels.recurrent.cells import COMPILED_WALKS, FUSED

COMPILED, PLAIN = "compiled walk", "fused steps"
NEEDS_COMPILER = pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled here")


def _rules(variants, before_the_walk=("lstm", "layer")):
    """The fused rules of variants: (name, cell, norm)."""
    return [*(pytest.param(COMPILED, *variant, marks=NEEDS_COMPILER) for variant in variants),
            pytest.param(COMPILED, *before_the_walk, marks=[NEEDS_COMPILER, pytest.mark.inputs_before_the_walk],
                         id=f"{COMPILED}-lstm-layer, inputs before the walk"),
            *((PLAIN, *variant) for variant in variants if variant in FUSED)]


RULES = _rules(COMPILED_WALKS)
"""All, and once more the LSTM of `layer`, with the product of few inputs made before its walk."""
ROW_RULES = _rules([variant for variant in COMPILED_WALKS if variant[1] != "batch"])
"""Those whose rows do not know of each other."""
WALKS = [pytest.param(*rule.values[1:], marks=rule.marks, id=rule.id and rule.id.removeprefix(f"{COMPILED}-"))
         for rule in RULES if not isinstance(rule, tuple)]
"""The compiled ones: (cell, norm)."""


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


def enough_rows(norm, sizes):
    """Sizes with so many rows that statistics over them are well-conditioned, where there are such."""
    steps, rows, *rest = sizes
    return (steps, max(rows, 6) if norm == "batch" else rows, *rest)


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
