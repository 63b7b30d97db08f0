"""The fused NumPy rules of the recurrent operators: against the composed rule, to the bit on every run, and what
they keep for the gradient.
"""

import numpy as np
import pytest
from duoln.kernels.recurrent.cases import KEPT
from ops.test_rnn import Problem

from duoln import ops
from duoln.testing import check_rule

FUSED = {"rnn": ("none", "layer"), "lstm": ("none", "layer", "layer-cell", "layer-theano"),
         "gru": ("none", "layer", "layer-theano")}
CASES = [(cell, norm) for cell, norms in FUSED.items() for norm in norms]


def _arguments(problem, dtype):
    """The operator's arrays in its order, with the bias and mask that may be missing."""
    arrays = [a.astype(dtype) for a in problem.arrays]
    head, rest = arrays[:3 + problem.n_states], arrays[3 + problem.n_states:]
    bias = rest.pop(0) if problem.has_bias else None
    return [*head, bias, problem.mask, *rest]


def _options(cell):
    return [{"remat": False}, {"remat": True}] if cell == "lstm" else [{}]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("reverse", [False, True], ids=["", "reverse"])
@pytest.mark.parametrize(("cell", "norm"), CASES)
def test_rule(cell, norm, reverse, masked, dtype, rng, numpy_backend):
    op = getattr(ops, cell)
    p = Problem(cell, norm, rng, steps=6, batch=5, n_in=7, hidden=9, masked=masked)
    for more in _options(cell):
        check_rule(op, op.rules("numpy")[0], _arguments(p, dtype),
                   {"norm": norm, "eps": 1e-5, "eps_place": "inside", "reverse": reverse, **more}, numpy_backend,
                   length=2000)


def _floats(saved, skip):
    """How many floats a rule keeps, without the inputs it was given."""
    total, seen = 0, {id(a) for a in skip}
    stack = list(saved)
    while stack:
        item = stack.pop()
        if isinstance(item, tuple | list):
            stack += item
        elif isinstance(item, np.ndarray) and item.dtype.kind == "f" and id(item) not in seen:
            seen.add(id(item))
            total += item.size
    return total


@pytest.mark.parametrize(("cell", "norm", "options", "kept"), [
    *((cell, norm, _options(cell)[0], kept) for (cell, norm), kept in KEPT.items()),
    ("lstm", "layer", {"remat": True}, 2), ("lstm", "none", {"remat": True}, 2)])
def test_memory_for_the_gradient(cell, norm, options, kept, rng, numpy_backend):
    steps, batch, hidden = 40, 30, 16
    p = Problem(cell, norm, rng, steps=steps, batch=batch, n_in=3, hidden=hidden)
    arguments = _arguments(p, "float32")
    rule = getattr(ops, cell).rules("numpy")[0]
    _, saved = rule.forward(numpy_backend, *arguments, norm=norm, eps=1e-5, eps_place="inside", reverse=False, **options)
    per_step_and_row = _floats(saved, arguments) / (steps * batch)
    assert per_step_and_row <= kept * hidden + 8  # and a few scale factors, and the weights once


@pytest.mark.parametrize(("cell", "norm"), [("lstm", "batch"), ("lstm", "layer-per-gate"), ("gru", "batch"),
                                            ("rnn", "layer-theano")])
def test_other_variants_are_left_to_the_composed_rule(cell, norm, rng, numpy_backend):
    p = Problem(cell, norm, rng)
    rule = getattr(ops, cell).rules("numpy")[0]
    arguments = _arguments(p, "float32")
    attrs = {"eps": 1e-5, "reverse": False}
    assert norm in rule.supports(numpy_backend, *arguments, norm=norm, eps_place="inside", **attrs)
    assert "outside" in rule.supports(numpy_backend, *arguments, norm="layer", eps_place="outside", **attrs)
