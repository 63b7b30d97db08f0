"""The rules of a device and their cases, from the registry."""

import numpy as np
import pytest
from conftest import GPU, get_backend

from duoln import nn, ops, optim, runtime, value_and_grad
from duoln.kernels.registry import every_case, every_rule
from duoln.randomness import Stream

_BACKENDS = {"cuda": GPU, "metal": "mlx"}


def rules(device):
    """Pairs of an operator's name and a rule, of "cuda" or "metal"."""
    return [(op.name, rule) for op, rule in every_rule(get_backend(_BACKENDS[device])) if rule.name.startswith(device)]


def cases(device):
    """The cases of the operators that have a rule of "cuda" or "metal"."""
    names = {name for name, _ in rules(device)}
    return [case for case in every_case() if case.op in names and not case.cpu]


def stored(op, backend):
    """The number of arrays of an operator that a rule takes in 16 bits."""
    return next(len(rule.stored) for rule in getattr(ops, op).rules(backend) if rule.stored)


def in_16_bits(cases, ordinary):
    """Each case in both dtypes, as a parameter of a test; those that are not named in `ordinary` take minutes."""
    for case in cases:
        for dtype in ("float16", "bfloat16"):
            name = f"{case.op} {dtype} {case.label}"
            yield pytest.param(case, dtype, id=name, marks=[] if name in ordinary else pytest.mark.minutes)


def beside_float32(case, natives, dtype, be):
    """The rule that takes these arrays, and each of its results and gradients beside that of float32, whether it is stored with it."""
    op, count = getattr(ops, case.op), stored(case.op, be.name)
    wide = [*(be.astype(a, "float32") for a in natives[:count]), *natives[count:]]
    gouts, needs, made, rules = None, tuple(a is not None for a in natives), [], []
    for kind, arrays in ((dtype, natives), ("float32", wide)):
        rule = op.select(be, arrays, case.attrs)
        out, saved = rule.forward(be, *arrays, **case.attrs)
        outs, rng = out if isinstance(out, tuple) else (out,), np.random.default_rng(1)
        gouts = gouts or [be.asarray(rng.standard_normal(o.shape).astype(np.float32), dtype) for o in outs]
        given = tuple(be.astype(g, kind) for g in gouts)
        made.append([*outs, *rule.vjp(be, saved, given if count == 2 else given[0], needs)])
        rules.append(rule)
    return rules[0], [(mine, own, k < 2 * count) for k, (mine, own) in enumerate(zip(*made, strict=True)) if own is not None]


def recurrent_losses(cell, norm, device):
    """The losses of five updates of a masked recurrent layer on a device, and on NumPy."""
    rng, model = np.random.default_rng(0), getattr(nn, cell)(5, 12, norm=norm)
    start, losses = model.init(Stream(3, "init")), []
    x, mask = rng.standard_normal((6, 4, 5)).astype(np.float32), np.arange(6)[:, None] < np.array([6, 3, 5, 1])
    for be in (device, runtime.backend("numpy")):
        params, adam, rate = runtime.to_tensors(start, be), optim.Adam(0.02), runtime.tensor(0.02, be)
        state, inputs, kept = adam.init(params), runtime.tensor(x, be), runtime.tensor(mask, be)
        step, told = value_and_grad(lambda p, i=inputs, k=kept: ops.mean(model(p, i, mask=k)[0] ** 2)), []
        for _ in range(5):
            loss, gradient = step(params)
            params, state = adam.update(params, gradient, state, rate)
            told.append(float(loss.numpy()))
        losses.append(told)
    return losses
