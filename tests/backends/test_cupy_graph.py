"""Compiled steps over CuPy as one CUDA graph: the bits of the step itself, and what a graph cannot repeat is not repeated.

Over the stand-in a launch finds its pool full of NaN.
"""

import warnings

import numpy as np
import pytest
import stand_in_capture
from conftest import GPU, STAND_IN

import duoln
from duoln import nn, ops, optim, tree
from duoln.errors import CompileWarning, KernelError
from duoln.randomness import Stream
from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.training.train_step import make_step, start_state

pytestmark = pytest.mark.skipif(GPU != STAND_IN, reason="the stand-in counts the launches of graphs")


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        yield


def _launched(run):
    """The result, and how many graphs were launched."""
    before = len(stand_in_capture.graphs)
    return run(), len(stand_in_capture.graphs) - before


def _tensor(be, *values):
    return duoln.tensor(np.array(values, np.float32), be)


def _differ(a, b):
    pairs = zip(tree.items(a), tree.leaves(b), strict=True)
    return [path for (path, x), y in pairs if x.numpy().tobytes() != y.numpy().tobytes()]


def _in_step(step, arguments, updates):
    """How many updates a compiled step made by a graph, with the bits of the step itself; `arguments(k)` are new each time."""
    compiled, states, by_graph = duoln.compile(step), list(arguments(None)), 0
    for k in range(updates):
        given = arguments(k)
        states[0], figures = step(states[0], *given)
        (states[1], of_graph), launched = _launched(lambda given=given: compiled(states[1], *given))
        assert _differ((states[0], figures), (states[1], of_graph)) == [], k
        by_graph += launched
    return by_graph


def _task(name, gpu, precision="float32"):
    task = find_task(name, [name])
    cfg = make_config(task, "ln", "smoke", {})
    model, optimizer, splits = task.model(cfg), task.optimizer(cfg, 1000), task.data(cfg)

    def arguments(k):
        if k is None:
            return [start_state(model, optimizer, 0, gpu) for _ in range(2)]
        return duoln.to_tensors(splits.train(k), gpu), duoln.tensor(np.float32(1e-2 / (k + 1)), gpu)

    return make_step(task, model, optimizer, precision), arguments


def _lstm(gpu, dtype="float32"):
    model, optimizer = nn.LSTM(3, 5, norm="layer"), optim.Adam(1e-2, donate=True)

    def step(state, x, rate):
        def loss(params):
            stored = tree.map(lambda p: p.astype(dtype) if p.ndim > 1 else p, params)
            return ops.mean(ops.square(model(stored, x.astype(dtype))[0]).astype("float32"))

        value, gradients = duoln.value_and_grad(loss)(state["params"])
        params, slots = optimizer.update(state["params"], gradients, state["slots"], rate)
        return {"params": params, "slots": slots}, value

    def arguments(k):
        if k is None:
            params = [duoln.to_tensors(model.init(Stream(0, "init")), gpu) for _ in range(2)]
            return [{"params": p, "slots": optimizer.init(p)} for p in params]
        x = np.random.default_rng(k).standard_normal((6, 2, 3)).astype(np.float32)
        return duoln.tensor(x, gpu), duoln.tensor(np.float32(1e-2 / (k + 1)), gpu)

    return step, arguments


@pytest.mark.long
@pytest.mark.parametrize(("name", "updates"), [("lstm", 6), *(pytest.param(*case, marks=pytest.mark.long) for case in (("draw", 6), ("mnist", 50), ("lstm", 50), ("draw", 50)))])
def test_training_has_the_bits_of_eager_steps(name, updates, gpu):
    """`tests/testing/test_checks.py` has every task, each with one batch; here each update has another one."""
    step, arguments = _lstm(gpu) if name == "lstm" else _task(name, gpu)
    assert _in_step(step, arguments, updates) == updates - 3


def test_results_stay_when_the_graph_runs_again(gpu):
    compiled = duoln.compile(lambda x: (ops.exp(x), x * 2.0))
    kept = [compiled(_tensor(gpu, k, 1.0)) for k in range(6)]
    for k, (exponential, double) in enumerate(kept):
        np.testing.assert_array_equal(exponential.numpy(), np.exp(np.float32([k, 1])))
        np.testing.assert_array_equal(double.numpy(), np.float32([2 * k, 2]))


def test_arguments_stay_as_they_are(gpu):
    compiled, given = duoln.compile(lambda x: x * 2.0 + 1.0), [_tensor(gpu, k) for k in range(6)]
    assert [compiled(x).item() for x in given] == [2.0 * k + 1 for k in range(6)]
    assert [x.item() for x in given] == list(range(6))


def _update(be, donate):
    optimizer = optim.Adam(0.1, donate=donate)

    def step(state, x):
        gradients = {"w": ops.broadcast_to(x, (3,)) * 1.0}
        params, slots = optimizer.update(state["params"], gradients, state["slots"], 0.1)
        return {"params": params, "slots": slots}

    def start(value):
        params = {"w": _tensor(be, value, value, value)}
        return {"params": params, "slots": optimizer.init(params)}

    return step, start


def _in_turns(gpu, count, donate):
    """Training that many states with one compiled step has the bits of the step itself."""
    step, start = _update(gpu, donate)
    compiled, states = duoln.compile(step), [[start(float(n)) for n in range(count)] for _ in range(2)]
    for k in range(6):
        for n in range(count):
            x = _tensor(gpu, float(k - n))
            states[0][n], states[1][n] = step(states[0][n], x), compiled(states[1][n], x)
        assert _differ(states[0], states[1]) == []


@pytest.mark.parametrize(("count", "donate"), [(2, True), (2, False), (3, False)])
def test_several_states_take_turns(count, donate, gpu):
    _in_turns(gpu, count, donate)


def test_three_states_that_are_updated_in_place_are_too_many(gpu):
    with pytest.warns(CompileWarning, match="at other addresses in most calls"):
        _in_turns(gpu, 3, True)


def test_arguments_that_come_back_unchanged(gpu):
    """They may be at other addresses at the next call, and stay where they are if not: a frozen weight is not copied."""
    frozen = _tensor(gpu, 5.0)
    compiled = duoln.compile(lambda frozen, x, rate: (frozen, x * rate + frozen, rate))
    for k in range(20):
        x, rate = _tensor(gpu, float(k)), _tensor(gpu, 0.5 * k)
        (same, value, back), launched = _launched(lambda x=x, rate=rate: compiled(frozen, x, rate))
        assert [same.item(), value.item(), back.item()] == [5.0, 0.5 * k * k + 5, 0.5 * k]
        assert launched == (k > 3), k
    assert same.data.data.ptr == frozen.data.data.ptr


def test_a_graph_is_for_one_stream(gpu):
    compiled = duoln.compile(lambda x: x * 3.0)
    for _ in range(4):
        compiled(_tensor(gpu, 1.0))
    with gpu.xp.cuda.Stream():
        values = [_launched(lambda k=k: compiled(_tensor(gpu, k)).item()) for k in range(3)]
    assert values == [(0.0, 0), (3.0, 1), (6.0, 1)]


def test_a_pool_that_gave_memory_back(gpu, monkeypatch):
    """The device had no more of it for another step: what the first one's graph writes may belong to another array now."""
    compiled = duoln.compile(lambda x: ops.exp(x * 2.0) + 1.0)
    values = [_launched(lambda k=k: compiled(_tensor(gpu, k)).item()) for k in range(5)]
    assert [launched for _, launched in values] == [0, 0, 0, 1, 1]
    monkeypatch.setattr(stand_in_capture, "full", 1)
    larger = duoln.compile(lambda x: ops.exp(x) * 2.0)
    for _ in range(3):
        larger(duoln.tensor(np.ones(9999, np.float32), gpu))
    assert stand_in_capture.full == 0
    values += [_launched(lambda k=k: compiled(_tensor(gpu, k)).item()) for k in range(5, 8)]
    assert [launched for _, launched in values[5:]] == [0, 1, 1]
    np.testing.assert_array_equal([value for value, _ in values], np.exp(2 * np.arange(8, dtype=np.float32)) + 1)


def test_one_array_as_two_arguments(gpu):
    x, y = _tensor(gpu, 2.0), _tensor(gpu, 5.0)
    compiled = duoln.compile(lambda a, b: (a, a * 10.0 + b))
    for _ in range(4):
        assert [r.item() for r in compiled(x, x)] == [2.0, 22.0]
    for _ in range(3):
        assert [r.item() for r in compiled(y, x)] == [5.0, 52.0]
        assert [r.item() for r in compiled(x, y)] == [2.0, 25.0]


def test_arguments_of_several_layouts(gpu, rng):
    values = rng.standard_normal((3, 4)).astype(np.float32)
    compiled = duoln.compile(lambda x: ops.sum(x * x, axis=0))
    expected = np.sum(values * values, axis=0)
    for _ in range(5):
        for tensor in (duoln.tensor(values, gpu), ops.permute_dims(duoln.tensor(values.T.copy(), gpu), (1, 0))):
            np.testing.assert_array_equal(compiled(tensor).numpy(), expected)
    with_gaps = duoln.Tensor(gpu.xp.ascontiguousarray(gpu.asarray(np.repeat(values, 2, axis=1)))[:, ::2], gpu)
    with pytest.warns(CompileWarning, match="an argument has gaps between its values"):
        for _ in range(5):
            np.testing.assert_array_equal(compiled(with_gaps).numpy(), expected)


def test_empty_arrays(gpu):
    compiled = duoln.compile(lambda x, y: (x * 2.0, y + 1.0))
    for k in range(5):
        empty, one = compiled(_tensor(gpu), _tensor(gpu, k))
        assert empty.shape == (0,) and one.item() == k + 1


# What cannot be captured --------------------------------------------------------------------------------------

def _with_rule(monkeypatch, gpu, forward):
    """An operator whose rule does something on the way."""
    from duoln.core import Op, Rule

    def doubled(x):
        return operator.apply(x)

    operator = Op(doubled)
    operator.add(Rule("composed", lambda be, x: (forward(be, x), None), lambda be, saved, gout, needs: (gout * 2.0,)))
    return operator


WAYS = {
    "an upload": lambda be, x: x + be.asarray(np.ones(1, np.float32)) * x[:1].sum() * 0.0 + x,
    "a copy to the host": lambda be, x: x * float(be.to_numpy(x * 0.0 + 2.0)[0]),
    "a wait for a stream": lambda be, x: (be.clock(), x * 2.0)[1],
    "calling cuBLAS": lambda be, x: x * 2.0 + 0.0 * be.xp.matmul(x[None], x[:, None])[0],
    "a wait for a count": lambda be, x: x * 2.0 + 0.0 * be.xp.flatnonzero(x * 0.0 + 1.0)[:1],
}


@pytest.mark.parametrize("what", WAYS)
def test_what_cannot_be_captured_runs_as_it_is(what, gpu, monkeypatch):
    compiled = duoln.compile(_with_rule(monkeypatch, gpu, WAYS[what]))
    with pytest.warns(CompileWarning, match=what) as warned:
        values = [_launched(lambda k=k: compiled(_tensor(gpu, k, 1.0)).numpy().tolist()) for k in range(5)]
    assert values == [([2.0 * k, 2.0], 0) for k in range(5)]
    assert len(warned) == 1


def test_repeated_rows_of_an_index(gpu):
    """`index_add` asks the device how many rows there are."""
    indices = duoln.tensor(np.array([[1, 0, 1]] * 2, np.int32), gpu)
    compiled = duoln.compile(lambda x: duoln.value_and_grad(lambda y: ops.sum(ops.take_along_axis(y, indices, 1)))(x)[1])
    with pytest.warns(CompileWarning, match="a wait for a count"):
        for k in range(4):
            x = duoln.tensor(np.full((2, 3), k, np.float32), gpu)
            np.testing.assert_array_equal(compiled(x).numpy(), [[1, 2, 0]] * 2)


def test_graphs_are_switched_off(gpu, monkeypatch):
    monkeypatch.setenv("DUOLN_GRAPH", "0")
    compiled = duoln.compile(lambda x: x * 2.0)
    assert [_launched(lambda k=k: compiled(_tensor(gpu, k)).item()) for k in range(5)] == [(2.0 * k, 0) for k in range(5)]
    assert gpu.info()["compiled_steps"] == "DUOLN_GRAPH is 0"


def test_without_cublas_the_reason_is_said(gpu, cublas, monkeypatch):
    def missing():
        raise KernelError("cuBLAS: libcublas.so.12, which CuPy uses, cannot be loaded: no such file")

    assert gpu.info()["compiled_steps"] == "one CUDA graph"
    monkeypatch.setattr(cublas, "load", missing)
    compiled = duoln.compile(lambda x: x * 2.0)
    with pytest.warns(CompileWarning, match="libcublas.so.12, which CuPy uses, cannot be loaded"):
        assert [compiled(_tensor(gpu, k)).item() for k in range(4)] == [0.0, 2.0, 4.0, 6.0]
    assert "libcublas.so.12" in gpu.info()["compiled_steps"]
