"""A program that lets NumPy raise on every floating-point error: what is too near 0 for its dtype is 0, and no error."""

import numpy as np
import pytest
from ops.cases import CASES

from duoln import compile, nn, ops, optim, tensor, to_tensors, tree, value_and_grad
from duoln.core import composed_only
from duoln.errors import DuolnError

SCALES = (1e-25, 1e-15, 80.0)
"""With the first two products and squares are too near 0, with the last one exponentials."""


def _values_and_gradients(case, tensors):
    outs = tree.leaves(case.fn(*tensors))
    floats = {k: t for k, t in enumerate(tensors) if t.dtype == "float32"}
    if not case.differentiable or not floats:
        return outs

    def total(given):
        results = tree.leaves(case.fn(*[given.get(k, t) for k, t in enumerate(tensors)]))
        return sum((ops.sum(t * 1e-20) for t in results if t.dtype == "float32"), start=tensor(np.float32(0), tensors[0].backend))

    return [*outs, *tree.leaves(value_and_grad(total)(floats))]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rules", ["picked", "composed"])
def test_underflow_is_no_error_in_any_operator(scale, rules, numpy_backend):
    same = 0
    for case in CASES:
        tensors = [tensor((x * scale).astype(np.float32) if x.dtype.kind == "f" else x, numpy_backend)
                   for x in case.inputs(np.random.default_rng(3))]
        with composed_only() if rules == "composed" else np.errstate():
            try:
                with np.errstate(all="ignore"):
                    expected = _values_and_gradients(case, tensors)
            except DuolnError:  # these values are not for this operator
                continue
            with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="raise"):
                for own, plain in zip(_values_and_gradients(case, tensors), expected, strict=True):
                    assert own.numpy().tobytes() == plain.numpy().tobytes(), case
        same += 1
    assert same > 500


def test_overflow_is_still_raised(numpy_backend):
    x = tensor(np.float32([1000, -1000]), numpy_backend)
    with composed_only(), np.errstate(all="raise"), pytest.raises(FloatingPointError, match="overflow"):
        ops.exp(x)


@pytest.mark.parametrize("rules", ["picked", "composed"])
@pytest.mark.parametrize("wraps", [lambda step: step, compile])
def test_a_training_step_with_tiny_gradients(wraps, rules, numpy_backend):
    """Adam squares them, and may write in place: it does so once."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), ops.softplus, nn.Linear(4, 2))
    start = to_tensors(model.init(0), numpy_backend)
    x, y = tensor(np.float32(np.random.default_rng(0).standard_normal((5, 3)) * 200), numpy_backend), tensor(np.int32([0, 1, 0, 1, 1]), numpy_backend)

    def trained(donate):
        optimizer = optim.Adam(1e-3, donate=donate)

        @wraps
        def step(params, slots, rate):
            _, gradients = value_and_grad(lambda p: ops.mean(ops.softmax_cross_entropy(model(p, x) * 80.0, y)) * 1e-24)(params)
            return optimizer.update(params, gradients, slots, rate)

        params = tree.map(lambda t: tensor(t.numpy(), numpy_backend), start)
        slots = optimizer.init(params)
        for _ in range(3):
            params, slots = step(params, slots, tensor(np.float32(1e-3), numpy_backend))
        return [t.numpy().tobytes() for t in tree.leaves((params, slots))]

    with composed_only() if rules == "composed" else np.errstate():
        plain = trained(donate=False)
        with np.errstate(all="raise"):
            assert trained(donate=False) == plain and trained(donate=True) == plain
