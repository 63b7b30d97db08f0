"""The table of a compiled step: the bits of the program that it stands for, whatever memory the call has."""

import json
import threading

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim, tree
from duoln.core import Rule, Tensor
from duoln.errors import UsageError
from duoln.kernels import host, native, step
from duoln.testing import check_error

pytestmark = pytest.mark.skipif(native.machine_refusal() is not None, reason="there is no C++ compiler")


class Net:
    """A training of a small network by a compiled step, beside one that is not."""

    def __init__(self, donate=True):
        self.model = nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 5))
        self.optimizer = optim.Adam(1e-2, donate=donate)
        self.compiled = duoln.compile(self.step)

    def start(self):
        params = duoln.to_tensors(self.model.init(0), "numpy")
        return params, self.optimizer.init(params)

    def batch(self, k):
        rng = np.random.default_rng(k)
        return (duoln.tensor(rng.standard_normal((6, 12)).astype(np.float32), "numpy"),
                duoln.tensor(rng.integers(0, 5, 6).astype(np.int32), "numpy"))

    def step(self, params, slots, x, label, rate):
        def loss(params):
            return ops.softmax_cross_entropy(self.model(params, x), label).mean()

        value, gradients = duoln.value_and_grad(loss)(params)
        return *self.optimizer.update(params, gradients, slots, rate), value

    def train(self, step, updates, state=None, each=lambda state: None):
        state = state or self.start()
        for k in range(updates):
            *state, value = step(*state, *self.batch(k), duoln.tensor(np.float32(1e-2), "numpy"))
            each(state)
        return [leaf.numpy().tobytes() for leaf in tree.leaves([*state, value])]


@pytest.fixture
def tables(monkeypatch):
    """The tables that are made, and how often each has run."""
    made = []

    class Counted(step.Table):
        def __init__(self, *args):
            super().__init__(*args)
            self.ran, run = 0, self._run

            def counted(*natives):
                self.ran += 1
                return run(*natives)

            self._run = counted
            made.append(self)

    monkeypatch.setattr(step, "Table", Counted)
    return made


@pytest.mark.parametrize("donate", [True, False])
def test_the_bits_of_the_step(tables, donate):
    net = Net(donate)
    assert net.train(net.compiled, 8) == net.train(net.step, 8)
    [table] = tables
    assert table.ran == 6


def test_an_array_that_something_else_holds_keeps_its_values(tables):
    """A view of a parameter, and a parameter that is two arguments' memory: the table does not run, or not in place."""
    net, seen = Net(), []

    def look(state):
        weight = state[0]["0"]["weight"] if "0" in state[0] else tree.leaves(state[0])[0]
        seen.append((weight.data[:2], weight.data[:2].copy()))

    assert net.train(net.compiled, 8, each=look) == net.train(net.step, 8)
    for view, copy in seen:
        np.testing.assert_array_equal(view, copy)


def test_parameters_that_are_parts_of_one_array_are_not_overwritten(tables, numpy_backend):
    net, kept = Net(), []

    def part(leaf):
        whole = np.concatenate([leaf.numpy().ravel(), leaf.numpy().ravel()])
        kept.append((whole, whole.copy()))
        return Tensor(whole[:leaf.size].reshape(leaf.shape), numpy_backend)

    net.train(net.compiled, 4)
    params, slots = net.start()
    net.train(net.compiled, 1, (tree.map(part, params), slots))
    assert tables[0].ran == 2
    for whole, values in kept:
        np.testing.assert_array_equal(whole, values)


def test_results_are_not_overwritten_by_the_next_call(tables, numpy_backend):
    compiled = duoln.compile(lambda x: (ops.exp(x) * 2.0, ops.reshape(x, shape=(2, 3)), x))
    xs = [duoln.tensor(np.arange(6, dtype=np.float32) + k, numpy_backend) for k in range(6)]
    results = [compiled(x) for x in xs]
    assert tables[0].ran == 4
    for x, (y, z, same) in zip(xs, results, strict=True):
        np.testing.assert_array_equal(y.numpy(), np.exp(x.numpy()) * 2)
        np.testing.assert_array_equal(z.numpy(), x.numpy().reshape(2, 3))
        np.testing.assert_array_equal(same.numpy(), x.numpy())


def test_two_threads_in_one_step(tables):
    net = Net()
    expected = net.train(net.step, 30)
    net.train(net.compiled, 4)
    got = {}
    threads = [threading.Thread(target=lambda k=k: got.update({k: net.train(net.compiled, 30)})) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each == expected for each in got.values()) and len(got) == 4


def test_another_number_of_threads_runs_the_program(tables, monkeypatch):
    net = Net()
    state = net.start()
    net.train(net.compiled, 4)
    ran = tables[0].ran
    monkeypatch.setattr(host, "workers", lambda: 7)
    assert net.train(net.compiled, 3, state) == net.train(net.step, 3)
    assert tables[0].ran == ran


def test_what_a_rule_saves_lives_as_long_as_its_gradient_needs_it(tables, numpy_backend):
    """The rule is not bound, because it looks at an array; what it saves is memory of the step."""
    @duoln.core.op
    def looked(x):
        return looked.apply(x)

    looked.add(Rule("composed", lambda be, x: (np.asarray(x) * 1.0, x), lambda be, x, g, needs: (g * x,)))

    def loss(x):
        z = looked(x + 1.0)  # nothing else keeps the sum
        for _ in range(5):
            z = ops.tanh(z + 1.0)
        return ops.sum(z)

    both = duoln.value_and_grad(loss)
    compiled = duoln.compile(both)
    for k in range(5):
        x = duoln.tensor(np.linspace(-1, 1, 40, dtype=np.float32) + k, numpy_backend)
        for a, b in zip(compiled(x), both(x), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert tables[0].ran == 3


def test_memory_that_a_rule_makes_itself_is_no_constant(tables, numpy_backend):
    """A rule that lets a kernel write into such an array runs as it is."""
    def forward(be, x):
        y = np.empty(x.shape, x.dtype)
        y[...] = x + x
        return y, None

    @duoln.core.op
    def doubled(x):
        return doubled.apply(x)

    doubled.add(Rule("composed", forward, lambda be, saved, g, needs: (g + g,)))
    compiled = duoln.compile(doubled)
    xs = [duoln.tensor(np.full(5, k, np.float32), numpy_backend) for k in range(5)]
    results = [compiled(x) for x in xs]
    assert [y.tolist() for y in results] == [[2.0 * k] * 5 for k in range(5)]


def test_a_scalar_of_numpy_is_an_input(tables, numpy_backend):
    compiled = duoln.compile(lambda x, y: ops.exp(x * 0.0) + y)
    y = duoln.tensor(0.0, numpy_backend)
    for k in range(6):
        y = compiled(duoln.tensor(np.float32(k), numpy_backend), y)
        y.data = y.data[()]  # as NumPy's arithmetic gives it
        assert y.item() == k + 1


def test_lines_are_told_and_timed(tmp_path):
    net = Net()
    net.train(net.compiled, 4)
    text = net.compiled.explain()
    assert "layer_norm_forward" in text and "matmul" in text and "_check_range" in text
    state = net.start()
    before = [leaf.numpy().copy() for leaf in tree.leaves(state)]
    profile = net.compiled.profile(*state, *net.batch(0), duoln.tensor(np.float32(1e-2), "numpy"))
    assert len(profile.rows) == len(profile.seconds) == len(text.splitlines()) - 1 and min(profile.seconds) >= 0
    assert "us in all" in str(profile) and "kernel adam" in str(profile)
    for leaf, values in zip(tree.leaves(state), before, strict=True):
        np.testing.assert_array_equal(leaf.numpy(), values)
    profile.save(tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == [row.name for row in profile.rows]
    check_error(UsageError, lambda: net.compiled.profile(*state), "arguments of the form")
    check_error(UsageError, duoln.compile(lambda x: x).explain, "three times")


def test_steps_of_any_size_share_the_arena(tables, numpy_backend):
    compiled = duoln.compile(lambda x: ops.sum(ops.exp(ops.tanh(x) + 1.0)))
    for _ in range(14):
        for size in (3, 300, 30_000, 30):
            x = duoln.tensor(np.linspace(0, 1, size, dtype=np.float32), numpy_backend)
            np.testing.assert_allclose(compiled(x).item(), np.exp(np.tanh(x.numpy()) + 1).sum(), rtol=1e-5)
    assert len(tables) == 4


def test_a_later_form_is_bound_after_some_calls(numpy_backend, monkeypatch):
    """The first two at once; what is computed is the same before and after."""
    from duoln.kernels.step import table as tables

    bound = []
    before = tables.Table.__init__
    monkeypatch.setattr(tables.Table, "__init__", lambda self, program, natives, plain: (bound.append(natives[0].shape), before(self, program, natives, plain))[1])
    step = duoln.compile(lambda x: ops.sum(ops.tanh(x) * x))
    for width in (3, 4, 5):
        x = duoln.tensor(np.linspace(-1, 1, width, dtype=np.float32), numpy_backend)
        results = [step(x).numpy() for _ in range(16)]
        assert len({r.tobytes() for r in results}) == 1
    assert bound == [(3,), (4,), (5,)]
    x = duoln.tensor(np.ones(6, np.float32), numpy_backend)
    for _ in range(4):
        step(x)
    assert len(bound) == 3
    assert "sum" in step.explain() or "reduce" in step.explain()
    assert len(bound) == 4
