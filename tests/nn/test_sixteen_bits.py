"""Layers with activations and weights in 16 bits: what they return, and what stays in float32."""

import numpy as np
import pytest

import duoln
from duoln import nn, tree
from duoln.errors import DtypeError, UsageError
from duoln.nn.population import is_statistic
from duoln.runs.precision import stored_params
from duoln.testing import check_error

NARROW = ["float16", "bfloat16"]
ROWS, IMAGE, STEPS = (6, 4), (6, 5, 5, 4), (5, 6, 4)
ACTIVATIONS = ("ELU", "GELU", "Identity", "LeakyReLU", "LogSoftmax", "ReLU", "Sigmoid", "SiLU", "Softmax", "Softplus", "Tanh")
LAYERS = {
    **{name: [(getattr(nn, name)(), ROWS)] for name in ACTIVATIONS},
    "Linear": [(nn.Linear(4, 3), ROWS), (nn.Linear(4, 3, bias=False, activation="relu"), IMAGE)],
    "Embedding": [(nn.Embedding(7, 4, padding_idx=0), None)], "Flatten": [(nn.Flatten(), IMAGE)],
    "Sequential": [(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)), IMAGE)],
    "Conv1d": [(nn.Conv1d(4, 4, 2), STEPS), (nn.Conv1d(4, 4, 2, bias=False, groups=2), STEPS)],
    "Conv2d": [(nn.Conv2d(4, 4, 2), IMAGE), (nn.Conv2d(4, 4, 2, bias=False, stride=2), IMAGE)],
    "WeightNorm": [(nn.WeightNorm(nn.Conv2d(4, 4, 2)), IMAGE), (nn.WeightNorm(nn.Linear(4, 3)), ROWS)],
    "BatchNorm": [(nn.BatchNorm(4), ROWS), (nn.BatchNorm(4), IMAGE)], "GroupNorm": [(nn.GroupNorm(2, 4), IMAGE)],
    "InstanceNorm": [(nn.InstanceNorm(4), IMAGE)], "LayerNorm": [(nn.LayerNorm(4), ROWS), (nn.LayerNorm((5, 4)), IMAGE)],
    "RMSNorm": [(nn.RMSNorm(4), ROWS), (nn.RMSNorm((5, 4)), IMAGE)], "Dropout": [(nn.Dropout(0.5), ROWS)],
    "MultiHeadAttention": [(nn.MultiHeadAttention(4, 2), STEPS)],
    "TransformerBlock": [(nn.TransformerBlock(4, 2, norm=norm, place=place, activation="gelu", dropout=0.5), STEPS)
                         for norm in ("layer", "rms", "none") for place in ("pre", "post")],
    # The learned states of all rows are equal, so a population has a variance of 0 there, which magnifies rounding.
    **{name: [(getattr(nn, name)(4, 3, norm=norm, learned_state=learned and norm != "batch", bidirectional=learned), STEPS)
              for norm in ("none", "layer", "layer-per-gate", "batch") for learned in (False, True)]
       + [(getattr(nn, name)(4, 3, layers=2, dropout=0.5, return_sequences=False), STEPS)] for name in ("RNN", "LSTM", "GRU")},
    **{name: [(getattr(nn, name)(4, 3, norm=norm, learned_state=learned), ROWS) for norm in ("none", "layer") for learned in (False, True)]
       for name in ("RNNCell", "LSTMCell", "GRUCell")},
}
IN_FLOAT32 = dict.fromkeys(("LogSoftmax", "GRUCell"), "float32")
"""Whose results are float32: logarithms of probabilities, and a state."""
CASES = [pytest.param(name, k, id=f"{name}-{k}") for name, cases in LAYERS.items() for k in range(len(cases))]


def test_every_layer_has_a_case():
    public = {name for name in nn.__all__ if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)}
    assert public - {"Module", "Recurrent", "RecurrentCell"} == set(LAYERS)


def _case(name, k, be, rng):
    layer, shape = LAYERS[name][k]
    host = rng.integers(0, 7, (3, 4)).astype(np.int32) if shape is None else rng.standard_normal(shape).astype(np.float32)
    x = duoln.tensor(host, be)
    params = duoln.to_tensors(tree.map(lambda a: np.float32(a + 0.2 * rng.standard_normal(a.shape)), layer.init(0)), be)
    return layer, nn.with_masks(params, nn.DropoutMasks(layer, 0)(0, params, x)) if any(isinstance(m, nn.Dropout) for _, m in layer.modules()) else params, x


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(("name", "k"), CASES)
def test_activations_keep_their_16_bits(name, k, dtype, be, rng):
    """In training and by the statistics of a population. The gradients of float32 parameters are float32."""
    layer, params, x = _case(name, k, be, rng)
    small, has_statistics = x if x.dtype == "int32" else x.astype(dtype), any(m.gathers for _, m in layer.modules())
    seen = set()

    def total(p, x):
        return tree.leaves(layer(p, x))[0].astype("float32").sum()

    for given in (params, nn.with_population(layer, params, [x])) if has_statistics else (params,):
        with duoln.observed(layer, lambda path, module, output: seen.add((type(module).__name__, output.dtype))):
            value, gradients = duoln.value_and_grad(lambda p: total(nn.in_16_bits(p, dtype), small))(given)
        expected = total(given, x).numpy()
        np.testing.assert_allclose(value.numpy(), expected, rtol=0.05, atol=0.05 * tree.leaves(layer(given, x))[0].size ** 0.5)
        assert {g.dtype for g in tree.leaves(gradients)} <= {"float32"}
    assert (name, IN_FLOAT32.get(name, dtype)) in seen and {stored for kind, stored in seen if kind != name} <= {dtype} and len(seen) == len(dict(seen))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("make", [lambda: nn.BatchNorm(3), lambda: nn.RNN(3, 2, norm="batch"), lambda: nn.LSTM(3, 2, norm="batch"), lambda: nn.GRU(3, 2, norm="batch")])
def test_statistics_are_float32_whatever_the_parameters_are(make, dtype, be, rng):
    """Of values whose variance float16 does not hold, and whose mean bfloat16 rounds by more than their spread."""
    layer, scale, shift = make(), {"float16": 400.0, "bfloat16": 1.0}[dtype], {"float16": 0.0, "bfloat16": 1003.0}[dtype]
    x = duoln.tensor(rng.standard_normal((4, 64, 3)).astype(np.float32) * np.float32(scale) + np.float32(shift), be)
    x = x.astype("float16") if dtype == "float16" else x
    exact = x.astype("float32")
    narrow = duoln.to_tensors(layer.init(0), be, dtype=dtype)
    wide = tree.map(lambda p: p.astype("float32"), narrow)  # the same numbers
    fixed, expected = nn.with_population(layer, narrow, [x]), nn.with_population(layer, wide, [exact])
    for (path, mine), own in zip(tree.items(fixed), tree.leaves(expected), strict=True):
        if is_statistic(path):
            assert mine.dtype == "float32"
            np.testing.assert_allclose(mine.numpy(), own.numpy(), rtol=1e-6, atol=1e-6, err_msg=path)
    y, right = (tree.leaves(layer(p, a))[0].astype("float32").numpy() for p, a in ((fixed, x), (expected, exact)))
    np.testing.assert_allclose(y, right, atol=0.01)
    if isinstance(layer, nn.BatchNorm):
        flat = exact.numpy().astype(np.float64).reshape(-1, 3)
        np.testing.assert_allclose(fixed["mean"].numpy(), flat.mean(0), rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(fixed["variance"].numpy(), flat.var(0, ddof=1), rtol=1e-5)
        np.testing.assert_allclose(y.reshape(-1, 3), (flat - flat.mean(0)) / flat.std(0, ddof=1), atol=0.01)


@pytest.mark.parametrize("cast", [nn.in_16_bits, lambda params: stored_params(params, "bf16")], ids=["in_16_bits", "bf16"])
def test_what_is_rounded(cast, be, rng):
    """Weights alone: no gain, bias or statistic, also of several axes."""
    model = nn.Sequential(nn.Conv2d(3, 3, 2), nn.LayerNorm((4, 3)), nn.RMSNorm((4, 3)), nn.BatchNorm(3), nn.WeightNorm(nn.Linear(3, 3)),
                          *(lambda x: x[:, 0], nn.LSTM(3, 2, norm="batch", learned_state=True), lambda pair: pair[0]), nn.Embedding(4, 2))
    x = duoln.tensor(rng.standard_normal((5, 5, 5, 3)).astype(np.float32), be)
    params = nn.with_population(model[:8], duoln.to_tensors(model.init(0), be), [x])
    dtypes = {path: p.dtype for path, p in tree.items(cast(params))}
    rounded = {path for path, dtype in dtypes.items() if dtype == "bfloat16"}
    assert rounded == {"0.weight", "4.direction", "6.forward0.w_x", "6.forward0.w_h", "8.table"}
    assert {dtype for path, dtype in dtypes.items() if path not in rounded} == {"float32"}
    assert params["6"]["forward0"]["mean_x"].ndim == params["1"]["gain"].ndim == 2
    whole = {"weight": duoln.tensor(np.ones((2, 2), np.int32), be), "half": duoln.tensor(np.ones((2, 2)), be, dtype="float16")}
    assert [p.dtype for p in cast(whole).values()] == ["int32", "float16"]


def test_wrong_calls_of_in_16_bits():
    check_error(UsageError, lambda: nn.in_16_bits({}, "float32"), "[in_16_bits] expected dtype 'float16' or 'bfloat16', found 'float32'")
    check_error(DtypeError, lambda: nn.in_16_bits({"w": np.ones((2, 2))}), "[in_16_bits] expected a duoln.Tensor")


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("dtype", NARROW)
def test_states_that_are_added_to_are_float32(kind, learned, dtype, be, rng):
    """They have one dtype from the first on, in a sequence, in single steps, and as they are carried on."""
    expected = {"RNN": [dtype], "LSTM": [dtype, "float32"], "GRU": ["float32"]}[kind]
    layer, cell = getattr(nn, kind)(4, 3, learned_state=learned), getattr(nn, f"{kind}Cell")(4, 3, learned_state=learned)
    x = duoln.tensor(rng.standard_normal(STEPS).astype(np.float32), be).astype(dtype)
    params, own = (nn.in_16_bits(duoln.to_tensors(m.init(0), be), dtype) for m in (layer, cell))
    [carried] = layer.first_states(params, 6)
    states = cell.first_states(own, 6)
    for k in range(2):
        assert [s.dtype for s in carried] == [s.dtype for s in states] == expected
        outputs, [carried] = layer(params, x, [carried])
        states = cell(own, x[k], states)
        assert outputs.dtype == dtype
