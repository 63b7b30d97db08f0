"""Recurrent batch norm by a population's statistics, against plain NumPy; and what maps or shares parameters meanwhile."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.testing import check_error, gradcheck, references

CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
N_IN, HIDDEN, EPS = 3, 4, 1e-5


def _reference(cell, p, x, bn, mask=None, reverse=False):
    """The equations of Cooijmans et al. 2017 in float64; `bn(name, array, own, real)` normalises the rows, `real` or padding, each at
    the time step `own` of its own sequence.
    """
    states = [np.zeros((x.shape[1], HIDDEN))] * (2 if cell == "lstm" else 1)
    out, own = np.zeros((*x.shape[:2], HIDDEN)), np.zeros(x.shape[1], int)
    for t in range(len(x))[::-1] if reverse else range(len(x)):
        h, real = states[0], np.ones(x.shape[1], bool) if mask is None else mask[t]
        x_gates, h_gates = (p[f"gain_{name}"] * bn(name, a @ p[f"w_{name}"], own, real) for name, a in (("x", x[t]), ("h", h)))
        x_gates = x_gates + p["bias"]
        if cell == "lstm":
            of_cell = lambda c, at=own, which=real: p["gain_c"] * bn("c", c, at, which) + p["bias_c"]  # noqa: E731
            new = references.lstm_states(x_gates + h_gates, states[1], of_cell)
        else:
            new = [np.tanh(x_gates + h_gates) if cell == "rnn" else references.gru_state(x_gates, h_gates, h)]
        states = [np.where(real[:, None], a, b) for a, b in zip(new, states, strict=True)]
        out[t], own = states[0], own + real
    return out


def _by_batch(seen):
    """Normalises by the batch; `seen` gets the mean and unbiased variance of each name and time step, once for each row that has it."""
    def bn(name, a, own, real):
        for k in own[real]:
            seen.setdefault((name, k), []).append((a.mean(0), a.var(0, ddof=1)))
        return (a - a.mean(0)) / np.sqrt(a.var(0) + EPS)

    return bn


def _means(of_batches):
    """The statistics of each name and time step: in each batch over its rows, then over the batches."""
    keys = {key for seen in of_batches for key in seen}
    return {key: np.mean([np.mean(seen[key], axis=0) for seen in of_batches if key in seen], axis=0) for key in keys}


def _by_means(means):
    """Normalises by what was seen, after the last time step by what was seen at the last."""
    last = max(k for _, k in means)

    def bn(name, a, own, real):
        mean, variance = np.moveaxis([means[name, k] for k in np.minimum(own, last)], 1, 0)
        return (a - mean) / np.sqrt(variance + EPS)

    return bn


def _case(cell, be, rng, **options):
    """A layer, its parameters on the host and as tensors, none at 0 or 1, and batches of 3, 5 and 4 time steps."""
    layer = CELLS[cell](N_IN, HIDDEN, norm="batch", **options)
    params = tree.map(lambda a: np.float32(a + 0.3 * rng.standard_normal(a.shape)), layer.init(0))
    batches = [rng.standard_normal((steps, 6, N_IN)).astype(np.float32) for steps in (3, 5, 4)]
    return layer, params, duoln.to_tensors(params, be), batches


def _tensors(arrays, be):
    return [duoln.tensor(a, be) for a in arrays]


@pytest.mark.few
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_statistics_and_outputs_of_each_cell(cell, reverse, padded, be, rng):
    """Padding stands behind most sequences, before one, and within another; it counts in no row's time steps."""
    layer, host, params, batches = _case(cell, be, rng)
    run, own, of_batches = layer.cells["forward0"], params["forward0"], []
    masks = [np.arange(len(x))[:, None] < rng.integers(1, len(x) + 1, 6) if padded else None for x in batches]
    if padded:
        masks[1][:, 1], masks[1][:, 2] = [False, True, True, True, True], [True, False, True, False, True]
    for x, mask in zip(batches, masks, strict=True):
        of_batches.append({})
        _reference(cell, host["forward0"], x, _by_batch(of_batches[-1]), mask, reverse)
    means = _means(of_batches)

    def forward(p, x, mask):
        return run.sequence(p, duoln.tensor(x, be), mask=None if mask is None else duoln.tensor(mask, be), reverse=reverse)

    evaluated = nn.with_population(run, own, list(zip(batches, masks, strict=True)), lambda p, pair: forward(p, *pair))
    for (name, k), pair in means.items():
        for kind, value in zip(("mean", "variance"), pair, strict=True):
            np.testing.assert_allclose(evaluated[f"{kind}_{name}"].numpy()[k], value, rtol=2e-4, atol=2e-6)
    assert all(len(evaluated[f"mean_{name}"]) == max(k for _, k in means) + 1 for name, _ in means) and "mean_x" not in own
    longer = rng.standard_normal((8, 2, N_IN)).astype(np.float32)
    for m in (None, np.arange(8)[:, None] < [8, 6], np.arange(8)[:, None] >= [0, 5]):
        expected = _reference(cell, host["forward0"], longer, _by_means(means), m, reverse)
        y, last = forward(evaluated, longer, m)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(last[0].numpy(), expected[0 if reverse else -1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"layers": 2, "bidirectional": True}, {"batch_first": True, "learned_state": True}], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_a_row_does_not_depend_on_the_others(cell, options, be, rng):
    layer, _, params, batches = _case(cell, be, rng, **options)
    axis = 0 if layer.batch_first else 1
    evaluated = nn.with_population(layer, params, [duoln.tensor(np.moveaxis(x, 1, axis).copy(), be) for x in batches])
    x = np.moveaxis(rng.standard_normal((5, 6, N_IN)).astype(np.float32), 1, axis).copy()
    together = layer(evaluated, duoln.tensor(x, be))[0].numpy()
    alone = [layer(evaluated, duoln.tensor(np.take(x, [k], axis), be))[0].numpy() for k in range(6)]
    np.testing.assert_allclose(np.concatenate(alone, axis), together, rtol=1e-4, atol=1e-5)
    assert np.abs(alone[0] - alone[1]).max() > 0.01


@pytest.mark.parametrize("options", [{}, {"layers": 2, "bidirectional": True}], ids=["one direction", "both"])
@pytest.mark.parametrize("cell", CELLS)
def test_padding_reaches_nothing(cell, options, be, rng):
    layer, _, params, batches = _case(cell, be, rng, **options)
    evaluated = nn.with_population(layer, params, _tensors(batches, be))
    x = rng.standard_normal((4, 2, N_IN)).astype(np.float32)
    weights = rng.standard_normal((4, 2, HIDDEN * len(layer.directions))).astype(np.float32)
    padded, mask = np.full((6, 2, N_IN), np.nan, np.float32), np.arange(6)[:, None] < [4, 4]
    padded[:4] = x

    def total(p, x, mask=None):
        y, last = layer(p, x, mask=mask)
        return ops.sum(y[:4] * duoln.tensor(weights, be)) + sum(ops.sum(state) for states in last for state in states)

    plain, gradients = duoln.value_and_grad(total)(evaluated, duoln.tensor(x, be))
    value, of_padded = duoln.value_and_grad(total)(evaluated, duoln.tensor(padded, be), duoln.tensor(mask, be))
    np.testing.assert_allclose(value.numpy(), plain.numpy(), rtol=1e-5)
    for (path, g), theirs in zip(tree.items(of_padded), tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(g.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-4, err_msg=path)


@pytest.mark.parametrize("steps", [0, 3], ids=["no time step", "nothing but padding"])
def test_sequences_without_a_real_time_step(steps, be, rng):
    layer, _, params, batches = _case("lstm", be, rng, bidirectional=True)
    evaluated = nn.with_population(layer, params, _tensors(batches, be))
    x, none = duoln.tensor(np.full((steps, 2, N_IN), np.nan, np.float32), be), duoln.tensor(np.zeros((steps, 2), bool), be)
    y, last = layer(evaluated, x, mask=none)
    assert y.shape == (steps, 2, 2 * HIDDEN) and not y.numpy().any() and not last[0][0].numpy().any()
    zeros = ops.zeros((steps, 2, N_IN), be)
    check_error(UsageError, lambda: nn.with_population(layer, params, [zeros], lambda p, x: layer(p, x, mask=none)), "saw no batch")


def test_gradients_and_their_limit(numpy_backend, rng):
    layer, _, params, batches = _case("lstm", numpy_backend, rng, gradient_limit=1e-3)
    evaluated = nn.with_population(layer, params, _tensors(batches, numpy_backend))
    exact = {"forward0": {key: t.astype("float64") + (0.1 if key.startswith("variance") else 0.0)  # the first of h is 0
                          for key, t in evaluated["forward0"].items()}}
    x = duoln.tensor(rng.standard_normal((4, 2, N_IN)), numpy_backend)
    free = nn.LSTM(N_IN, HIDDEN, norm="batch")
    own = exact["forward0"]
    trained = {key: t for key, t in own.items() if not key.startswith(("mean", "variance"))}
    gradcheck(lambda *leaves: free({"forward0": own | dict(zip(trained, leaves, strict=True))}, x)[0], *trained.values())
    loss = lambda p, layer: ops.sum(layer(p, x)[0])  # noqa: E731
    limited, plain = (duoln.value_and_grad(loss)(exact, each)[1]["forward0"]["w_h"].numpy() for each in (layer, free))
    assert not np.allclose(limited, plain, rtol=1e-3)


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm(3), lambda: nn.LSTM(3, 2, norm="batch", bidirectional=True)])
def test_a_pass_may_be_differentiated_but_not_compiled(make, be, rng):
    layer, x = make(), duoln.tensor(rng.standard_normal((5, 6, 3)).astype(np.float32), be)
    params = duoln.to_tensors(layer.init(0), be)

    def loss(params, x):
        y = layer(params, x)
        return ops.sum(y[0] if isinstance(y, tuple) else y)

    plain = nn.with_population(layer, params, [x])
    within = nn.with_population(layer, params, [x], lambda p, x: duoln.value_and_grad(loss)(p, x))
    for a, b in zip(tree.leaves(plain), tree.leaves(within), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    check_error(UsageError, lambda: nn.with_population(layer, params, [x], duoln.compile(loss)), "[with_population] forward", "not compiled")


def test_errors(be, rng):
    layer, _, params, batches = _case("lstm", be, rng)
    x, cell = duoln.tensor(batches[0], be), layer.cells["forward0"]
    evaluated = nn.with_population(layer, params, [x])
    words = "[LSTM] expected a sequence", "found one time step"
    check_error(UsageError, lambda: cell(evaluated["forward0"], x[0]), *words)
    check_error(UsageError, lambda: nn.with_population(cell, params["forward0"], [x], lambda p, x: cell(p, x[0])), *words)
    check_error(UsageError, lambda: nn.with_population(layer, params, []), "LSTMCell at 'forward0' saw no batch")
    check_error(ShapeError, lambda: nn.with_population(layer, params, [x[:, :1]]), "at least 2 rows")
    check_error(ShapeError, lambda: nn.with_population(layer, params["forward0"], [x]), "[with_population]", "'forward0'")
    lost = {"forward0": {k: v for k, v in evaluated["forward0"].items() if k != "variance_c"}}
    check_error(ShapeError, lambda: layer(lost, x), "[LSTM]", "'variance_c'")
    bad_mask = duoln.tensor(np.ones((3, 6), np.float32), be)
    check_error(DtypeError, lambda: layer(evaluated, x, mask=bad_mask), "mask")


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm(3), lambda: nn.LSTM(3, 2, norm="batch")])
def test_statistics_are_not_trained(be, make):
    layer, x = make(), duoln.tensor(np.random.default_rng(0).standard_normal((5, 6, 3)).astype(np.float32), be)
    params = nn.with_population(layer, duoln.to_tensors(layer.init(0), be), [x])

    def loss(params, x):
        y = layer(params, x)
        return ops.sum(ops.square(y[0] if isinstance(y, tuple) else y))

    optimizer = optim.Adam(0.1)
    _, gradients = duoln.value_and_grad(loss)(params, x)
    new, _ = optimizer.update(params, gradients, optimizer.init(params), 0.1)
    moved = {path for (path, _), (a, b) in zip(tree.items(params), tree.zipped(params, new), strict=True)
             if not np.array_equal(a.numpy(), b.numpy())}
    statistics = {path for path, _ in tree.items(params) if path.split(".")[-1].split("_")[0] in ("mean", "variance")}
    assert statistics and moved == {path for path, _ in tree.items(params)} - statistics


def test_a_population_is_of_several_batches(numpy_backend):
    layer, x = nn.BatchNorm(3), duoln.tensor(np.ones((5, 3), np.float32), "numpy")
    params = duoln.to_tensors(layer.init(0), "numpy")
    for batches, kind in ((x, "Tensor"), ({"x": x}, "dict")):
        check_error(DtypeError, lambda batches=batches: nn.with_population(layer, params, batches), "a list of inputs", kind)
