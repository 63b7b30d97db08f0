"""Every operator of the table with values of 16 bits: the rule for float32 on the same values, rounded once."""

import numpy as np
import pytest
from ops.cases import CASES

import duoln
from duoln import ops
from duoln.core import Rule, Tensor, composed_only, each_rule
from duoln.testing import check_op
from duoln.testing.gradients import projected_gradients

NARROW = ("bfloat16", "float16")


def _tensors(case, be, dtype):
    inputs = case.inputs(np.random.default_rng(3))
    return [duoln.tensor(x, be, dtype=dtype) if x.dtype.kind == "f" else duoln.tensor(x, be) for x in inputs]


def _wide(be, x):
    return be.astype(x, "float32") if hasattr(x, "dtype") and be.dtype(x) in NARROW else x


def _stored(be, x, like):
    """What is stored of a float32 value where another value, or nothing, was stored."""
    return x if x is None or be.dtype(x) == be.dtype(like) else be.astype(x, be.dtype(like))


def _many(x):
    return x if isinstance(x, tuple) else (x,)


class Compared:
    """In the place of each rule, one that compares it with the op's own rule on the widened arrays."""

    def __init__(self):
        self.narrow = self.gradients = 0

    def __call__(self, op, rule):
        def forward(be, *natives, **attrs):
            out, saved = rule.forward(be, *natives, **attrs)
            with each_rule(lambda op, rule: rule):
                plain, kept = op.rules(be.name)[-1].forward(be, *[_wide(be, x) for x in natives], **attrs)
            if op is not ops.astype:
                for mine, own in zip(_many(out), _many(plain), strict=True):
                    self._same(be, mine, own)
            self.narrow += any(be.dtype(o) in NARROW for o in _many(out))
            return out, (saved, kept, natives, op.rules(be.name)[-1])

        def vjp(be, saved, gout, needs):
            mine_saved, kept, natives, plain = saved
            gradients = rule.vjp(be, mine_saved, gout, needs)
            wide = tuple(_wide(be, g) for g in gout) if isinstance(gout, tuple) else _wide(be, gout)
            for mine, own, x, need in zip(gradients, plain.vjp(be, kept, wide, needs), natives, needs, strict=True):
                if need:
                    assert be.dtype(mine) == be.dtype(x)
                    self._same(be, mine, own)
                    self.gradients += 1
            return gradients

        return Rule(rule.name, forward, None if rule.vjp is None else vjp)

    @staticmethod
    def _same(be, mine, own):
        np.testing.assert_array_equal(be.to_numpy(mine), be.to_numpy(_stored(be, own, mine)))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_computed_in_float32_and_rounded_once(case, dtype, numpy_backend):
    tensors = _tensors(case, numpy_backend, dtype)
    floats = [k for k, t in enumerate(tensors) if t.dtype == dtype]
    compared = Compared()
    with np.errstate(all="ignore"), composed_only(), each_rule(compared):
        case.fn(*tensors)
        if case.differentiable and floats:
            projected_gradients(case.fn, tensors, floats, np.random.default_rng(1))
            assert compared.gradients


@pytest.mark.parametrize("case", CASES[::9], ids=str)
def test_close_to_the_formula_on_every_backend(case, be):
    if min((t.size for t in _tensors(case, be, "bfloat16")), default=0) > 1:
        check_op(case.fn, case.inputs(np.random.default_rng(3)), case.reference, be, case.length, case.differentiable, dtype="bfloat16")


@pytest.mark.parametrize("dtype", NARROW)
def test_layouts(dtype, be):
    """Arrays in other orders and with gaps give the same bits as copies in order."""
    x = duoln.tensor(np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32), be, dtype=dtype)
    for view in (x.T, x[::2], x[:, ::-1], x[1:, 3:], ops.broadcast_to(x[:1], (4, 8))):
        plain = duoln.tensor(view.numpy().copy(), be, dtype=dtype)
        for fn in (ops.exp, lambda a: a * a, ops.layer_norm, lambda a: ops.matmul(a, a.T), lambda a: ops.linear(a, ops.permute_dims(a, axes=(1, 0))), ops.sum,
                   lambda a: ops.concat(a, a, axis=1), lambda a: ops.take(a, duoln.tensor([1, 0, 1], be), axis=1)):
            result, expected = fn(view), fn(plain)
            assert isinstance(result, Tensor) and result.dtype == expected.dtype
            np.testing.assert_allclose(result.numpy().astype(np.float32), expected.numpy().astype(np.float32), rtol=8e-3, atol=1e-3)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_an_activated_product_is_stored_as_its_input(activation, be):
    """As the product and the activation apart."""
    x, weight = duoln.tensor(np.ones((2, 3), np.float32), be, dtype="float16"), duoln.tensor(np.ones((3, 4), np.float32), be)
    assert ops.activated_linear(x, weight, activation=activation).dtype == ops.linear(x, weight).dtype == "float16"
