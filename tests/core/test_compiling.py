"""compile: the values of eager, errors for what a traced step must not contain, nesting, threads and seeming constants."""

import contextvars
import copy
import inspect
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import ON_NUMPY, PATIENCE

import duoln
from duoln import Tensor, ops
from duoln.core import composed_only, each_rule
from duoln.core.step_contract import MAX_INPUT_FORMS
from duoln.errors import CompileError, CompileWarning, GradientError, MixedBackendError
from duoln.kernels import native
from duoln.testing import check_error


def _step(state, x, rate):
    loss, grads = duoln.value_and_grad(lambda w: ops.mean(ops.square(ops.tanh(x @ w))))(state["w"])
    return {"w": state["w"] - grads * rate}, loss


def _inputs(be, rng):
    return ({"w": duoln.tensor(rng.standard_normal((4, 3)).astype(np.float32), be)},
            duoln.tensor(rng.standard_normal((5, 4)).astype(np.float32), be), duoln.tensor(0.1, be))


def test_leaves_must_be_tensors(be, rng):
    state, x, _ = _inputs(be, rng)
    check_error(CompileError, lambda: duoln.compile(_step)(state, x, 0.1), "argument 'rate'", "float", "0-d")
    check_error(CompileError, lambda: duoln.compile(lambda s: {"n": 3})(state), "result 'n'", "int")
    check_error(CompileError, lambda: duoln.compile(lambda: None)(), "none")


def test_one_backend(rng, numpy_backend):
    from conftest import get_backend

    a, b = (duoln.tensor([1.0], x) for x in (numpy_backend, get_backend("mlx")))
    compiled = duoln.compile(lambda x, y: x + y)
    for _ in range(4):
        check_error(MixedBackendError, lambda: compiled(a, b), "numpy", "mlx")
        assert [compiled(x, x).backend for x in (a, b)] == [a.backend, b.backend]


def test_numpy_refuses_results_that_change_form(numpy_backend):
    calls = []

    def step(x):
        calls.append(1)
        return x if len(calls) < 2 else x[:1]

    compiled, x = duoln.compile(step), duoln.tensor([1.0, 2.0], numpy_backend)
    compiled(x)
    check_error(CompileError, lambda: compiled(x), "changed form", "(2,)", "(1,)")


def test_a_step_runs_as_it_is_for_ever_new_shapes(be):
    runs = []

    def step(x):
        runs.append(x.shape)
        return 2.0 * x

    compiled = duoln.compile(step)
    for n in range(1, MAX_INPUT_FORMS + 1):
        compiled(duoln.tensor(np.ones(n, np.float32), be))
    runs.clear()
    for _ in range(3):
        with pytest.warns(CompileWarning, match=f"more than {MAX_INPUT_FORMS} different forms"):
            y = compiled(duoln.tensor(np.ones(99, np.float32), be))
        assert y.numpy().tolist() == [2.0] * 99
    assert runs == [(99,)] * 3
    for _ in range(5):
        compiled(duoln.tensor(np.ones(2, np.float32), be))  # a known one is repeated, without a warning
    assert len(runs) <= 5


# Compiled functions inside gradients, and threads inside compiled steps --------------------------------

def _x(be, *values):
    return duoln.tensor(np.array(values, np.float32), be)


def _list(result):
    return [t.numpy().tolist() for t in duoln.tree.leaves(result)]


# Inside a gradient ------------------------------------------------------------------------------------

def test_a_compiled_function_has_its_part_of_the_gradient(be):
    f, p = duoln.compile(lambda p, x: (p * x).sum()), _x(be, 3.0, 4.0)
    for k in range(4):
        x = _x(be, 1.0 + k, 2.0)
        value, gradient = duoln.value_and_grad(lambda p: f(p, x) * 2.0)(p)  # noqa: B023
        assert (value.item(), gradient.numpy().tolist()) == (2 * (3 + 3 * k + 8), [2.0 + 2 * k, 4.0])
        assert f(p, x).item() == 3 + 3 * k + 8  # outside it is compiled


def test_a_gradient_in_a_compiled_function_in_a_gradient_is_refused_at_every_call(be):
    inside = duoln.compile(lambda p: duoln.value_and_grad(lambda p: ops.sum(p * p))(p)[0])
    p = _x(be, 1.0, 2.0)
    for _ in range(3):
        inside(p)
    for _ in range(3):
        check_error(GradientError, lambda: duoln.value_and_grad(inside)(p), "a gradient inside a gradient")


def test_a_thread_in_a_gradient_may_not_close_over_a_parameter(numpy_backend):
    x = _x(numpy_backend, 1.0, 2.0)
    with ThreadPoolExecutor(1) as pool:
        def loss(p):
            return pool.submit(duoln.compile(lambda x: (p * x).sum()), x).result()

        check_error(CompileError, lambda: duoln.value_and_grad(loss)(_x(numpy_backend, 3.0, 4.0)), "another thread")


# What only seems to be a constant ---------------------------------------------------------------------

def _of_flag(first):
    def made(be):
        flag = ops.all(_x(be, 1.0 if first else -1.0) > 0.0)  # NumPy has one object for all that is True

        def step(x):
            inside = ops.any(x > 0.0) if first else ops.all(x > 0.0)
            return ops.where(flag, x * 3.0, x) + ops.where(inside, x * 0.0, x * 10.0)

        return step

    return made


def _of_two_flags(x):
    a, b = (ops.isfinite(ops.sum(part)) for part in (x[:1], x[1:]))
    return ops.concat(ops.where(a, x[:1], -x[:1]), ops.where(b, x[1:], -x[1:]))


def _of_own_flag(be):
    flag = duoln.tensor(True, be)
    return lambda x: ops.where(flag, x * 3.0, ops.where(ops.any(x > 0.0), x, -x))


def _of_no_tensor(x):
    mask = duoln.tensor(np.tril(np.ones((2, 2), np.float32)), x.backend)
    return mask @ (x + ops.arange(2, backend=x.backend, dtype="float32") + ops.ones((2,), x.backend))


SIGNS = ((3, 4),) * 3 + ((-1, 2), (-1, -2))
SEEMING = {
    "deep copies": (lambda be: lambda x: copy.deepcopy({"x": x * 1.0})["x"] * 2.0 + copy.deepcopy(x) - copy.copy(x),
                    ((1, 2),) * 3 + ((5, 6), (7, 8)), ""),
    "a flag from outside": (_of_flag(True), SIGNS, None), "a false one": (_of_flag(False), SIGNS, None),
    "a flag of duoln": (_of_own_flag, SIGNS[1:], ""),
    "two flags": (lambda be: _of_two_flags, ((5, 5),) * 3 + ((np.inf, 5), (5, np.inf)), None),
    "what is made of no tensor": (lambda be: _of_no_tensor, tuple((k, 0) for k in range(4)), ""),
    "a scalar of NumPy": (lambda be: lambda x: ops.where(Tensor((x.data > 0).any(), be), x, x * 10.0),
                          ((1,), (1,), (2,), (-3,)), "no argument"),
    "arithmetic of NumPy": (lambda be: lambda x: ops.exp(Tensor(x.data * np.float32(2), be)), ((1,), (1,), (2,), (3,)), "no argument"),
}
"""What makes the step on a backend, the inputs (those that are equal prove nothing), and what it is warned of; None where backends differ."""


@ON_NUMPY
@pytest.mark.parametrize("name", SEEMING)
def test_what_only_seems_to_be_a_constant_is_none(be, name):
    made, inputs, words = SEEMING[name]
    if "of NumPy" in name and be.name != "numpy":
        pytest.skip("it computes with arrays of NumPy")
    step = made(be)
    compiled = duoln.compile(step)
    with warnings.catch_warnings(record=True) as captured:
        warnings.simplefilter("always")
        for x in inputs:
            np.testing.assert_array_equal(compiled(_x(be, *x)).numpy(), step(_x(be, *x)).numpy(), err_msg=f"{x}")
    assert words is None or [w.category for w in captured] == [CompileWarning] * bool(words)
    assert all((words or "") in str(w.message) for w in captured)


@pytest.mark.parametrize("read", [lambda x: x.numpy(), np.asarray, np.sum, float, lambda x: x.item(), lambda x: x.tolist(),
                                  pickle.dumps, lambda x: f"{x:.1f}", bool, round, lambda x: int(x)])
def test_reading_is_refused(be, read):
    compiled = duoln.compile(lambda x: x * 2.0 if read(x) is None else x)
    check_error(CompileError, lambda: compiled(_x(be, 2.0)[0]), "host")


def test_a_context_within_a_step_hides_no_operator(numpy_backend):
    ran = []

    def step(x):
        with each_rule(lambda op, rule: ran.append(op.name) or rule):
            y = ops.exp(x)
        with composed_only():
            y = y + ops.tanh(x)
        return y * 2.0

    compiled = duoln.compile(step)
    for value in (1.0, 1.0, 1.0, 2.0, 3.0):
        assert _list(compiled(_x(numpy_backend, value))) == _list(step(_x(numpy_backend, value)))
    assert ran == ["exp"] * 7  # two recordings, and five calls of the step itself


def test_what_the_first_call_makes_and_later_ones_find_is_a_constant(be):
    kept, calls = {}, []

    def step(x):
        calls.append(1)
        if "table" not in kept:
            kept["table"] = duoln.tensor([10.0, 20.0], x.backend)
        return x * kept["table"]

    compiled = duoln.compile(step)
    for k in range(6):
        assert compiled(_x(be, k, 1.0)).numpy().tolist() == [10.0 * k, 20.0]
    assert len(calls) == 3


# Threads inside a step --------------------------------------------------------------------------------

def _in_thread(function, *args):
    got = []
    thread = threading.Thread(target=lambda: got.append(function(*args)))
    thread.start()
    thread.join()
    return got[0]


def _in_pool(function, *args):
    with ThreadPoolExecutor(2) as pool:
        return pool.submit(function, *args).result()


def _in_context(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, function, *args).result()


STEPS = {
    "an operator": lambda go, x: x + go(ops.exp, x),
    "a result": lambda go, x: go(ops.exp, x),
    "a copy": lambda go, x: go(copy.deepcopy, x) * 2.0,
    "values": lambda go, x: x * float(go(lambda x: x.numpy(), x)[0]),
    "a number": lambda go, x: x * go(lambda x: x[0].item(), x),
    "another dtype": lambda go, x: ops.astype(go(lambda x: x.astype("int32"), x), dtype="float32") + x,
    "a gradient": lambda go, x: duoln.value_and_grad(lambda x: go(lambda x: ops.sum(ops.exp(x)), x) + ops.sum(x))(x)[1],
    "a constant": lambda go, x: x + go(lambda: ops.ones((2,), x.backend)),
}


@pytest.mark.parametrize("go", [_in_thread, _in_pool, _in_context])
@pytest.mark.parametrize("name", STEPS)
def test_work_in_threads_is_not_frozen(numpy_backend, name, go):
    compiled = duoln.compile(lambda x: STEPS[name](go, x))
    if go is _in_context and name in ("values", "a number"):  # the thread knows that it is within a step
        check_error(CompileError, lambda: compiled(_x(numpy_backend, 0.5, 1.0)), "host")
        return
    with pytest.warns(CompileWarning, match="runs as it is: (another thread computes|it computes with an array)"):
        for x in ([0.5, 1.0], [0.5, 1.0], [0.5, 1.0], [1.0, 0.25]):
            assert _list(compiled(_x(numpy_backend, *x))) == _list(STEPS[name](go, _x(numpy_backend, *x)))


# The object -------------------------------------------------------------------------------------------

def test_a_compiled_step_is_not_pickled(be):
    compiled = duoln.compile(lambda x: x * 2.0)
    check_error(CompileError, lambda: pickle.dumps(compiled), "pickle the step itself")
    assert copy.deepcopy(compiled) is compiled


def test_a_compiled_step_has_the_name_and_the_text_of_the_step(be):
    @duoln.compile
    def step(x):
        """Twice x."""
        return x * 2.0

    assert (step.__name__, step.__doc__, str(inspect.signature(step))) == ("step", "Twice x.", "(x)")
    assert duoln.compile(step)(_x(be, 2.0)).item() == duoln.compile(ops.exp)(_x(be, 0.0)).item() * 4.0


# Arguments by name, and static ones ---------------------------------------------------------------------------

@pytest.mark.parametrize("decorate", [lambda f: duoln.compile(f, static="flag"), duoln.compile(static=("flag", "power"))])
def test_static_arguments_have_a_step_for_each_value(be, decorate):
    ran = []

    @decorate
    def step(x, y=None, *, flag=False, power=1.0):
        ran.append((flag, power))
        z = x * 2.0 if flag else x
        return z if y is None else z + y["a"] * power

    x = duoln.tensor([1.0, 2.0], be)
    for _ in range(4):
        assert step(x).tolist() == [1.0, 2.0] and step(x, flag=True).tolist() == [2.0, 4.0]
        assert step(x, {"a": x}, flag=False).tolist() == step(x=x, y={"a": x}).tolist() == [2.0, 4.0]
        assert step(y={"a": x}, x=x, flag=True).tolist() == [3.0, 6.0]
    assert len(ran) == 2 * 5  # two calls of each are recorded


def test_1_and_true_are_other_static_values(numpy_backend):
    step, x = duoln.compile(lambda x, by: x * by, static="by"), duoln.tensor([2, 3], numpy_backend)
    for by in (1, 2, 1, 2, 1, 2, 1, 2):
        assert step(x, by).tolist() == [2 * by, 3 * by]
    name = duoln.compile(lambda x, kind: x.astype("float32") if kind is True else x, static="kind")
    assert [name(x, kind).dtype for kind in (1, True, 1, True, 1, True)] == ["int32", "float32"] * 3


def test_a_static_self_is_the_object(be):
    class Holder:
        def __init__(self, by):
            self.by = by

        @duoln.compile(static="self")
        def step(self, x):
            return x * self.by

    x = duoln.tensor([1.0], be)
    two, three = Holder(2.0), Holder(3.0)
    assert [h.step(x).item() for h in (two, three) * 4] == [2.0, 3.0] * 4


def test_wrong_static_arguments_are_told(numpy_backend):
    x = duoln.tensor([1.0], numpy_backend)
    step = duoln.compile(lambda x, flag=False: x, static="flag")
    check_error(CompileError, lambda: step(x, flag=[1]), "static", "hashable", "flag=[1]")
    check_error(CompileError, lambda: duoln.compile(lambda x: x, static="flag"), "static", "'flag'", "x")
    check_error(CompileError, lambda: step(x={"a": x, "b": 2.0}), "argument 'x', 'b'", "2.0")
    with pytest.raises(TypeError, match="third"):
        step(x, third=x)


def test_calls_are_those_of_python(numpy_backend):
    x = duoln.tensor([2.0], numpy_backend)
    many = duoln.compile(lambda *args, **named: args[0] + args[1] * named["args"] + args[2])
    assert [many(x, x, x, args=x).item() for _ in range(4)] == [8.0] * 4
    step = duoln.compile(lambda x, by=1.0: x * by, static="by")
    for call, words in ((lambda: step(x, 2.0, 3.0), "too many positional"), (lambda: step(x, 2.0, by=3.0), "multiple values"),
                        (lambda: step(x, x=x), "multiple values"), (lambda: step(by=2.0), "missing a required")):
        with pytest.raises(TypeError, match=words):
            call()


def test_many_static_values_run_as_they_are(numpy_backend):
    step, x = duoln.compile(lambda x, by: x * float(by), static="by"), duoln.tensor([1.0], numpy_backend)
    with pytest.warns(CompileWarning, match="16 different"):
        assert [step(x, by).item() for by in range(20)] == [float(by) for by in range(20)]


def test_a_step_with_names_can_be_explained(numpy_backend):
    if native.machine_refusal() is not None:
        pytest.skip("steps are bound where kernels are compiled")
    step, x = duoln.compile(lambda x, y, twice: x * y * (2.0 if twice else 1.0), static="twice"), duoln.tensor([3.0], numpy_backend)
    for _ in range(4):
        assert step(x, y=x, twice=True).item() == 18.0
    assert "multiply" in step.explain() and len(step.profile(x, y=x, twice=True).rows) == 2


THREADS = 8


def _together(work, count=THREADS):
    """The results of `work(0) ... work(count - 1)`; each has its own thread, and all threads start at the same moment."""
    gate = threading.Barrier(count)

    def start(k):
        gate.wait(timeout=PATIENCE)
        return work(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def test_large_arrays_in_eight_threads(numpy_backend, rng):
    """Large enough for the rules that share their rows among threads of their own."""
    x = duoln.tensor(rng.standard_normal((600, 1000)).astype(np.float32), numpy_backend)
    gain, bias = (duoln.tensor(v, numpy_backend) for v in (np.ones(1000, np.float32), np.zeros(1000, np.float32)))

    def gradients(k):
        fn = duoln.value_and_grad(lambda t: ops.sum(ops.square(ops.layer_norm(t * (k + 1.0), gain, bias))))
        return [fn(x)[1].numpy() for _ in range(4)]

    alone = [gradients(k)[0] for k in range(2)]
    for k, gradients_of_thread in enumerate(_together(lambda k: gradients(k % 2))):
        assert all(np.array_equal(g, alone[k % 2]) for g in gradients_of_thread)


def test_reading_in_one_thread_while_another_is_within_a_step(numpy_backend):
    inside, read = threading.Event(), threading.Event()

    def step(x):
        inside.set()
        assert read.wait(timeout=PATIENCE)
        return x * 2.0

    x = duoln.tensor([1.0], numpy_backend)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(duoln.compile(step), x)
        assert inside.wait(timeout=PATIENCE)
        try:
            np.testing.assert_array_equal(x.numpy(), [1.0])
        finally:
            read.set()
        np.testing.assert_array_equal(running.result(timeout=PATIENCE).numpy(), [2.0])
    np.testing.assert_array_equal(x.numpy(), [1.0])


def test_composed_only_holds_for_its_thread(numpy_backend):
    x, labels = duoln.tensor(np.ones((2, 3), np.float32), numpy_backend), duoln.tensor([0, 1], numpy_backend)

    def first_rule(_=None):
        return ops.softmax_cross_entropy.explain(x, labels)[0][0]

    with composed_only(), ThreadPoolExecutor(1) as pool:
        assert first_rule() == "composed"
        assert pool.submit(first_rule).result() != "composed"
