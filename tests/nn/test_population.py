"""Recurrent batch norm by a population's statistics, against plain NumPy; and what maps or shares parameters meanwhile."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.testing import check_error, gradcheck

CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
N_IN, HIDDEN, EPS = 3, 4, 1e-5


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _reference(cell, p, x, bn, mask=None, reverse=False):
    """The equations of Cooijmans et al. 2017 in float64; `bn(name, array, k)` normalises at the k-th time step."""
    states = [np.zeros((x.shape[1], HIDDEN))] * (2 if cell == "lstm" else 1)
    out = np.zeros((*x.shape[:2], HIDDEN))
    for k, t in enumerate(range(len(x))[::-1] if reverse else range(len(x))):
        h = states[0]
        x_gates, h_gates = p["gain_x"] * bn("x", x[t] @ p["w_x"], k) + p["bias"], p["gain_h"] * bn("h", h @ p["w_h"], k)
        if cell == "rnn":
            new = [np.tanh(x_gates + h_gates)]
        elif cell == "lstm":
            f, i, o, g = np.split(x_gates + h_gates, 4, axis=1)
            c = _sigmoid(f) * states[1] + _sigmoid(i) * np.tanh(g)
            new = [_sigmoid(o) * np.tanh(p["gain_c"] * bn("c", c, k) + p["bias_c"]), c]
        else:
            (xz, xr, xn), (hz, hr, hn) = (np.split(a, 3, axis=1) for a in (x_gates, h_gates))
            z = _sigmoid(xz + hz)
            new = [(1 - z) * h + z * np.tanh(xn + _sigmoid(xr + hr) * hn)]
        real = np.ones((x.shape[1], 1), bool) if mask is None else mask[t][:, None]
        states = [np.where(real, a, b) for a, b in zip(new, states, strict=True)]
        out[t] = states[0]
    return out


def _by_batch(seen):
    """Normalises by the batch, and keeps the mean and the unbiased variance of each name and time step in `seen`."""
    def bn(name, a, k):
        seen.setdefault((name, k), []).append((a.mean(0), a.var(0, ddof=1)))
        return (a - a.mean(0)) / np.sqrt(a.var(0) + EPS)

    return bn


def _by_means(seen):
    """Normalises by the means of what was seen, after the last time step by those of the last."""
    last = max(k for _, k in seen)

    def bn(name, a, k):
        mean, variance = np.mean(seen[name, min(k, last)], axis=0)
        return (a - mean) / np.sqrt(variance + EPS)

    return bn


def _case(cell, be, rng, **options):
    """A layer, its parameters on the host and as tensors, none at 0 or 1, and batches of 3, 5 and 4 time steps."""
    layer = CELLS[cell](N_IN, HIDDEN, "batch", **options)
    params = tree.map(lambda a: np.float32(a + 0.3 * rng.standard_normal(a.shape)), layer.init(0))
    batches = [rng.standard_normal((steps, 6, N_IN)).astype(np.float32) for steps in (3, 5, 4)]
    return layer, params, duoln.to_tensors(params, be), batches


def _tensors(arrays, be):
    return [duoln.tensor(a, be) for a in arrays]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_statistics_and_outputs_of_each_cell(cell, reverse, be, rng):
    layer, host, params, batches = _case(cell, be, rng)
    run = layer.cells["forward0"]
    own, seen = params["forward0"], {}
    for x in batches:
        _reference(cell, host["forward0"], x, _by_batch(seen), reverse=reverse)
    evaluated = nn.with_population(run, own, _tensors(batches, be), lambda p, x: run.sequence(p, x, reverse=reverse))
    for (name, k), pairs in seen.items():
        for kind, value in zip(("mean", "variance"), np.mean(pairs, axis=0), strict=True):
            np.testing.assert_allclose(evaluated[f"{kind}_{name}"].numpy()[k], value, rtol=2e-4, atol=2e-6)
    assert all(len(evaluated[f"mean_{name}"]) == 5 for name, _ in seen) and "mean_x" not in own
    longer = rng.standard_normal((8, 2, N_IN)).astype(np.float32)
    mask = np.arange(8)[:, None] < [8, 6]
    for m in (None, mask):
        expected = _reference(cell, host["forward0"], longer, _by_means(seen), m, reverse)
        y, last = run.sequence(evaluated, duoln.tensor(longer, be), mask=None if m is None else duoln.tensor(m, be), reverse=reverse)
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


@pytest.mark.parametrize("cell", CELLS)
def test_padding_reaches_nothing(cell, be, rng):
    layer, _, params, batches = _case(cell, be, rng)
    evaluated = nn.with_population(layer, params, _tensors(batches, be))
    x = rng.standard_normal((4, 2, N_IN)).astype(np.float32)
    padded, mask = np.full((6, 2, N_IN), np.nan, np.float32), np.arange(6)[:, None] < [4, 4]
    padded[:4] = x

    def total(p, x, mask=None):
        return ops.sum(layer(p, x, mask=mask)[1][0][0])

    plain, gradients = duoln.value_and_grad(total)(evaluated, duoln.tensor(x, be))
    value, of_padded = duoln.value_and_grad(total)(evaluated, duoln.tensor(padded, be), duoln.tensor(mask, be))
    np.testing.assert_allclose(value.numpy(), plain.numpy(), rtol=1e-5)
    for (path, g), theirs in zip(tree.items(of_padded), tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(g.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-4, err_msg=path)


def test_gradients_and_their_limit(numpy_backend, rng):
    layer, _, params, batches = _case("lstm", numpy_backend, rng, gradient_limit=1e-3)
    evaluated = nn.with_population(layer, params, _tensors(batches, numpy_backend))
    exact = {"forward0": {key: t.astype("float64") + (0.1 if key.startswith("variance") else 0.0)  # the first of h is 0
                          for key, t in evaluated["forward0"].items()}}
    x = duoln.tensor(rng.standard_normal((4, 2, N_IN)), numpy_backend)
    free = nn.LSTM(N_IN, HIDDEN, "batch")
    own = exact["forward0"]
    trained = {key: t for key, t in own.items() if not key.startswith(("mean", "variance"))}
    gradcheck(lambda *leaves: free({"forward0": own | dict(zip(trained, leaves, strict=True))}, x)[0], *trained.values())
    loss = lambda p, layer: ops.sum(layer(p, x)[0])  # noqa: E731
    limited, plain = (duoln.value_and_grad(loss)(exact, each)[1]["forward0"]["w_h"].numpy() for each in (layer, free))
    assert not np.allclose(limited, plain, rtol=1e-3)


def test_a_second_time_replaces_the_first(be, rng):
    for model in (nn.LSTM(N_IN, HIDDEN, "batch"), nn.Sequential(norm=nn.BatchNorm(N_IN))):
        params = duoln.to_tensors(model.init(0), be)
        first, second = _tensors([rng.standard_normal((4, 6, N_IN)).astype(np.float32) for _ in range(2)], be)
        twice = nn.with_population(model, nn.with_population(model, params, [first]), [second])
        for a, b in zip(tree.leaves(twice), tree.leaves(nn.with_population(model, params, [second])), strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("change", [lambda t: t, lambda t: t.astype("bfloat16") if t.ndim > 1 else t])
def test_a_model_that_maps_its_parameters(change, be, rng):
    """As a run in bf16 does."""
    model = nn.Sequential(one=nn.Linear(N_IN, 5), two=nn.BatchNorm(5), three=nn.Linear(5, N_IN), four=nn.BatchNorm(N_IN))
    params = duoln.to_tensors(model.init(0), be)
    x = duoln.tensor(rng.standard_normal((8, N_IN)).astype(np.float32), be)
    evaluated = nn.with_population(model, params, [x], lambda p, x: model(tree.map(change, p), x))
    plain = nn.with_population(model, params, [x])
    for name in ("two", "four"):
        np.testing.assert_allclose(evaluated[name]["mean"].numpy(), plain[name]["mean"].numpy(), atol=0.05)
    assert list(evaluated["two"]) == ["gain", "bias", "mean", "variance"]


def test_a_large_mean_costs_no_digits(be, rng):
    model = nn.BatchNorm(N_IN)
    x = (rng.standard_normal((64, N_IN)) + 1e4).astype(np.float32)
    params = duoln.to_tensors({"gain": np.ones(3, np.float32), "bias": np.zeros(3, np.float32),
                               "mean": np.full(3, 1e4, np.float32), "variance": np.ones(3, np.float32)}, be)
    expected = (x.astype(np.float64) - 1e4) / np.sqrt(1 + EPS)
    np.testing.assert_allclose(model(params, duoln.tensor(x, be)).numpy(), expected, rtol=1e-6, atol=1e-6)


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


@pytest.mark.parametrize("unbiased", [False, True])
def test_one_row_is_refused(unbiased, be):
    """Its result is the bias, and its gradient 0, whatever it is."""
    x = duoln.tensor(np.ones((1, N_IN), np.float32), be)
    check_error(ShapeError, lambda: ops.batch_norm(x, unbiased=unbiased), "[batch_norm] expected at least 2 rows", "(1, 3)")
    for cell in CELLS.values():
        layer = cell(N_IN, HIDDEN, "batch")
        check_error(ShapeError, lambda layer=layer: layer(duoln.to_tensors(layer.init(0), be), ops.expand_dims(x, axis=0)), "[batch_norm]")


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
