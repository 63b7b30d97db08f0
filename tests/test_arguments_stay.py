"""No call of ours writes into an array that it was given: every public function and layer with read-only arrays.

Native code does not see that NumPy's arrays are read-only, so their bytes are compared too.
"""

import inspect

import numpy as np
import pytest
from conftest import ON_NUMPY, get_backend
from misuse.calls import CALLS, run
from misuse.test_pytorch_words import FUNCTIONS
from nn.test_sixteen_bits import LAYERS

import duoln
from duoln import nn, ops, optim, testing, tree
from duoln.core import Tensor, composed_only
from duoln.data import Batches
from duoln.data.batches import check_range, count_examples, examples
from duoln.data.idx import write_idx
from duoln.data.npz import write_npz
from duoln.errors import DtypeError, GradientError


class Given:
    """Arrays that are given away, read-only where their library has that, and what they were."""

    def __init__(self, be):
        self.be, self.arrays = be, []

    def host(self, array):
        array = np.array(array)
        array.flags.writeable = False
        self.arrays.append((array, np.asarray, array.tobytes()))
        return array

    def tensor(self, array):
        """A tensor over such an array itself, without a copy where the backend is NumPy's."""
        native = self.host(array) if self.be.name == "numpy" else self.be.asarray(np.array(array))
        self.arrays.append((native, self.be.to_numpy, self.be.to_numpy(native).tobytes()))
        return Tensor(native, self.be)

    def tensors(self, arrays):
        return tree.map(self.tensor, arrays)

    def check(self, what):
        changed = [k for k, (array, read, before) in enumerate(self.arrays) if read(array).tobytes() != before]
        assert not changed, (what, changed)


def _floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _call_and_differentiate(function, tensors, what, given, wraps=lambda step: step):
    """Values, then gradients of all float tensors: the step as it is, or compiled and repeated."""
    read = lambda result: [t.numpy() for t in tree.leaves(result) if isinstance(t, Tensor)]  # noqa: E731
    read(function(*tensors))
    given.check(f"{what}: values")
    floats = {str(k): t for k, t in enumerate(tensors) if isinstance(t, Tensor) and t.dtype in ("float32", "float64")}

    if not floats:
        return

    def loss(chosen):
        results = tree.leaves(function(*[chosen.get(str(k), t) for k, t in enumerate(tensors)]))
        return sum((ops.sum(ops.square(t)) for t in results if t.dtype in ("float32", "float64")),
                   start=duoln.tensor(np.float32(0), given.be))

    try:
        duoln.value_and_grad(loss)(floats)
    except (GradientError, DtypeError):  # it has no gradient
        return
    step = wraps(duoln.value_and_grad(loss))
    for _ in range(3):
        read(step(floats))
    given.check(f"{what}: gradients")


@ON_NUMPY
@pytest.mark.parametrize("rules", ["picked", "composed"])
def test_operators(rules, be):
    for call in CALLS:
        given = Given(be)
        tensors = [None if a is None else given.tensor(a) for a, _ in call.tensors]
        with composed_only() if rules == "composed" else np.errstate():
            _call_and_differentiate(lambda *t, call=call: run(call, be, list(t)), tensors, call.name, given,
                                    duoln.compile if be.name == "numpy" else lambda step: step)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, be):
    layer, shape = LAYERS[name][0]
    given = Given(be)
    params = given.tensors(layer.init(0))
    keys, leaves = [path for path, _ in tree.items(params)], tree.leaves(params)
    x = given.tensor(np.int32([[0, 1], [4, 2]]) if shape is None else _floats(*shape))
    with nn.no_dropout():
        _call_and_differentiate(lambda x, *own: layer(tree.unflatten(params, own), x), [x, *leaves], name, given)
    if layer.gathers and not isinstance(layer, nn.RecurrentCell):
        nn.with_population(layer, params, [x])
    assert [path for path, _ in tree.items(params)] == keys
    given.check(name)


STARTED = {nn.Linear: (4, 3), nn.Embedding: (5, 4), nn.Conv1d: (4, 6, 3), nn.Conv2d: (4, 6, 3),
           **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell), (4, 3))}


def test_what_an_initialiser_returned():
    """It may be the user's own array, such as a table of words."""
    called = 0
    for kind, args in STARTED.items():
        signature = inspect.signature(nn.RecurrentCell if issubclass(kind, nn.Recurrent) else kind).parameters
        for argument in [name for name in signature if name.endswith("_init")]:
            given = Given(get_backend("numpy"))
            kind(*args, **{argument: lambda rng, shape, given=given: given.host(np.ones(shape, np.float32))}).init(0)
            assert given.arrays
            given.check(f"{kind.__name__} {argument}")
            called += 1
    assert called >= 15


OPTIMIZERS = {"Adam": lambda **k: optim.Adam(1e-2, clip=optim.clip_global_norm(1.0), **k), "Adam, donated": lambda **k: optim.Adam(1e-2, donate=True, **k),
              "SGD": lambda **k: optim.SGD(1e-2, momentum=0.9, clip=optim.clip_value(0.1), **k), "RMSProp": lambda **k: optim.RMSProp(1e-2, clip=optim.clip_each_norm(0.1), **k)}


@pytest.mark.parametrize("rules", ["picked", "composed"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, rules, be):
    """Even `donate` takes no array of which NumPy says that it is read-only."""
    if name == "Adam, donated" and be.name != "numpy":
        pytest.skip("the caller gives these arrays away")
    given, optimizer = Given(be), OPTIMIZERS[name]()
    arrays = {"w": _floats(3, 4), "b": _floats(4)}
    with composed_only() if rules == "composed" else np.errstate():
        params, gradients = given.tensors(arrays), given.tensors(tree.map(lambda a: 0.1 * a, arrays))
        slots = given.tensors(tree.map(lambda t: t.numpy(), optimizer.init(params)))
        for t in tree.leaves(optimizer.update(params, gradients, slots, 1e-2)):
            t.numpy()
    given.check(name)


HOST = {
    "duoln.tensor": lambda g, be, tmp: [duoln.tensor(g.host(_floats(3)), be) * 2, duoln.tensor(g.host(np.float64([1, 2])), be, "float32"), duoln.tensor(g.host(np.int32([0, 1])), be, within=(0, 2))],
    "duoln.to_tensors": lambda g, be, tmp: duoln.to_tensors({"a": g.host(_floats(3)), "b": [g.host(_floats(2))]}, be),
    "duoln.save": lambda g, be, tmp: duoln.save(tmp / "a.safetensors", {"a": g.host(_floats(3)), "b": g.tensor(_floats(2))}),
    "duoln.save_pytorch": lambda g, be, tmp: duoln.save_pytorch(tmp / "b.safetensors", nn.LSTM(4, 3), {"forward0": {
        "w_x": g.tensor(_floats(4, 12)), "w_h": g.tensor(_floats(3, 12)), "bias": g.tensor(_floats(12))}}),
    "duoln.value_and_grad": lambda g, be, tmp: duoln.value_and_grad(lambda p: ops.sum(p["a"] * p["a"]))({"a": g.tensor(_floats(3))}),
    "duoln.compile": lambda g, be, tmp: [step(g.tensor(_floats(300))) for step in [duoln.compile(lambda x: ops.tanh(x * 2.0) + x)] for _ in range(4)],
    "duoln.average_gradients": lambda g, be, tmp: duoln.average_gradients(g.tensors({"a": _floats(3)}), 2.0),
    "duoln.custom_gradient": lambda g, be, tmp: duoln.value_and_grad(lambda x: ops.sum(duoln.custom_gradient(lambda x: (x * 2.0, lambda d: d * 2.0))(x)))(g.tensor(_floats(3))),
    "duoln.stop_gradient": lambda g, be, tmp: duoln.stop_gradient(g.tensor(_floats(3))),
    "check_range": lambda g, be, tmp: check_range("test", g.host(np.int32([0, 1])), 2),
    "count_examples": lambda g, be, tmp: count_examples({"x": g.host(_floats(3, 2))}, {"x": 0}),
    "examples": lambda g, be, tmp: examples({"x": g.host(_floats(3, 2))}, {"x": 0}, np.array([2, 0])),
    "write_npz": lambda g, be, tmp: write_npz(tmp / "a.npz", {"x": g.host(np.uint8([[1, 2]]))}),
    "write_idx": lambda g, be, tmp: write_idx(tmp / "a-idx", g.host(np.uint8([[1, 2]]))),
    "duoln.nn.with_population": lambda g, be, tmp: nn.with_population(nn.LSTM(4, 3, norm="batch"), g.tensors(nn.LSTM(4, 3, norm="batch").init(0)), [g.tensor(_floats(5, 6, 4))]),
    "duoln.nn.in_16_bits": lambda g, be, tmp: nn.in_16_bits(g.tensors({"a": _floats(2, 3), "b": _floats(3)})),
    "duoln.nn.with_masks": lambda g, be, tmp: nn.with_masks(g.tensors({"a": {}, "b": _floats(3)}), g.tensors({"a": _floats(3)})),
    "duoln.nn.without_population": lambda g, be, tmp: nn.without_population(nn.BatchNorm(3), g.tensors({"gain": _floats(3), "mean": _floats(3)})),
    "duoln.save_state": lambda g, be, tmp: duoln.save_state(tmp / "states", 1, a=g.host(_floats(3)), b=g.tensor(_floats(2))),
    "duoln.optim.clip_each_norm": lambda g, be, tmp: optim.clip_each_norm(0.1)(g.tensors({"a": _floats(3)})),
    "duoln.optim.clip_global_norm": lambda g, be, tmp: optim.clip_global_norm(0.1)(g.tensors({"a": _floats(3)})),
    "duoln.optim.clip_value": lambda g, be, tmp: optim.clip_value(0.1)(g.tensors({"a": _floats(3)})),
    "scale_by_norm": lambda g, be, tmp: optim.scale_by_norm(lambda norm: 1.0 / norm)(g.tensors({"a": _floats(3)})),
    "duoln.optim.global_norm": lambda g, be, tmp: optim.global_norm(g.tensors({"a": _floats(3)})),
    "duoln.testing.check_close": lambda g, be, tmp: testing.check_close(g.host(_floats(3)), g.host(_floats(3)), 1e-6, "test"),
    "duoln.testing.check_op": lambda g, be, tmp: testing.check_op(ops.tanh, [g.host(_floats(3))], np.tanh, be),
    "duoln.testing.check_rule": lambda g, be, tmp: testing.check_rule(ops.tanh, ops.tanh.rules("numpy")[0], [g.host(_floats(300))], "numpy"),
    "duoln.testing.gradcheck": lambda g, be, tmp: testing.gradcheck(ops.tanh, Tensor(g.host(_floats(3).astype(np.float64)), get_backend("numpy"))),
    "duoln.data.Batches": lambda g, be, tmp: [Batches({"x": g.host(_floats(6, 2)), "label": g.host(np.arange(6, dtype=np.int32))}, 2, 0)(k) for k in range(7)],
    "duoln.from_dlpack": lambda g, be, tmp: ops.exp(duoln.from_dlpack(g.host(_floats(3)))),
    "duoln.vjp": lambda g, be, tmp: duoln.vjp(ops.tanh, g.tensor(_floats(3)))[1](g.tensor(_floats(3))),
    "Tensor": lambda g, be, tmp: [np.asarray(g.tensor(_floats(3))), g.tensor(_floats(3)).numpy()],
}
WITHOUT_ARRAYS = {
    "duoln.backend", "duoln.find_rate", "duoln.init", "duoln.load", "duoln.load_arrays", "duoln.load_pytorch", "duoln.load_state", "duoln.observed", "duoln.ranks", "duoln.summary",
    "duoln.optim.cosine", "duoln.optim.exponential", "duoln.optim.linear_warmup", "duoln.optim.piecewise", "duoln.optim.schedule", "duoln.optim.steps", "duoln.nn.no_dropout",
    "duoln.data.read_idx", "duoln.data.read_json", "duoln.data.read_lines", "duoln.data.read_mnist", "duoln.data.read_npz", "duoln.data.read_tar", "duoln.data.read_text",
    "duoln.testing.check_corpus", "duoln.testing.check_error", "duoln.testing.check_kernel", "duoln.testing.check_task"}


def test_every_function_is_called_or_takes_no_arrays():
    names = {f"{module}.{name}" for module, name, _ in FUNCTIONS if module not in ("duoln.ops", "duoln.nn.init", "duoln.tasks")}
    assert names == {name for name in HOST if name.startswith("duoln.")} - {"duoln.data.Batches"} | WITHOUT_ARRAYS


@pytest.mark.parametrize("name", HOST)
def test_functions(name, be, tmp_path):
    given = Given(be)
    HOST[name](given, be, tmp_path)
    assert given.arrays
    given.check(name)
