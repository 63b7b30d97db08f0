"""Calls of layers that are observed: which are told, under which path, and that nothing of it stays."""

import threading

import numpy as np
import pytest

import duoln
from duoln import nn
from duoln.errors import DtypeError, ShapeError
from duoln.nn.observing import observed, own_arrays
from duoln.testing import check_error


class Doubled(nn.Module):
    """A layer without parameters."""

    def __call__(self, params, x):
        return x * 2.0


class Twice(nn.Module):
    """One layer without parameters at two places, another one called twice, and a method that calls the module itself."""

    def __init__(self):
        shared = Doubled()
        self.first, self.second, self.again = shared, shared, nn.LayerNorm(3)

    def weights(self, rng):
        return {"scale": np.ones(3, np.float32)}

    def __call__(self, params, x):
        return self.body(params, x) * params["scale"]

    def body(self, params, x):
        x = self.again(params["again"], self.second(params["second"], x))
        return self.again(params["again"], self.first(params["first"], x))


def calls_in(model, function):
    """Path, class and shape of each call of a layer in `function()`."""
    calls = []
    with observed(model, lambda path, layer, output: calls.append((path, type(layer).__name__, output.shape))):
        function()
    return calls


def params_of(model, be):
    return duoln.to_tensors(model.init(0), be)


def test_each_call_is_told_with_its_own_path(be):
    model = Twice()
    params, x = params_of(model, be), duoln.tensor(np.ones((2, 3), np.float32), be)
    of_body = [("second", "Doubled", (2, 3)), ("again", "LayerNorm", (2, 3)), ("first", "Doubled", (2, 3)), ("again", "LayerNorm", (2, 3))]
    assert calls_in(model, lambda: model(params, x)) == [*of_body, ("", "Twice", (2, 3))]
    assert calls_in(model, lambda: model.body(params, x)) == [*of_body, ("", "Twice", (2, 3))]
    inside = nn.Sequential(body=model)
    deep = {"body": params}
    assert calls_in(inside, lambda: inside(deep, x))[:4] == [(f"body.{path}", *rest) for path, *rest in of_body]


def test_the_same_values_come_out(be):
    model = Twice()
    params, x = params_of(model, be), duoln.tensor(np.random.default_rng(0).standard_normal((4, 3), np.float32), be)
    before, outputs = model(params, x).numpy(), []
    with observed(model, lambda path, layer, output: outputs.append((path, output.numpy()))):
        during = model(params, x).numpy()
    assert before.tobytes() == during.tobytes() == dict(outputs)[""].tobytes()


def test_cells_are_seen_at_every_step_and_over_a_sequence(be):
    cell, layer = nn.LSTMCell(3, 4), nn.LSTM(3, 4, layers=2)
    params, x = params_of(cell, be), duoln.tensor(np.ones((5, 2, 3), np.float32), be)

    def walk():
        states = cell.first_states(params, 2)  # no call: it gets no tensor
        for t in range(5):
            states = cell(params, x[t], states)

    assert calls_in(cell, walk) == [("", "LSTMCell", (2, 4))] * 5
    assert calls_in(cell, lambda: cell.sequence(params, x)) == [("", "LSTMCell", (5, 2, 4))]
    assert [path for path, *_ in calls_in(layer, lambda: layer(params_of(layer, be), x))] == ["forward0", "forward1", ""]


def test_the_classes_are_as_before_even_after_an_error(numpy_backend):
    class Fails(nn.Sequential):
        def extra(self, params, x):
            raise ValueError("own error")

    model = Fails(nn.Linear(3, 2))
    kinds = (Fails, nn.Sequential, nn.Linear)
    before = [dict(vars(kind)) for kind in kinds]
    params, x = params_of(model, numpy_backend), duoln.tensor(np.ones((1, 3), np.float32), numpy_backend)
    with pytest.raises(ValueError, match="own error") as error, observed(model, lambda *call: None):
        assert dict(vars(nn.Linear)) != before[2]
        model.extra(params, x)
    assert error.value.__notes__ == ["[Fails] given (1, 3) float32"]
    assert [dict(vars(kind)) for kind in kinds] == before


def test_other_models_of_the_same_classes_are_not_told(numpy_backend):
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    params, x = params_of(one, numpy_backend), duoln.tensor(np.ones((1, 3), np.float32), numpy_backend)
    assert calls_in(one, lambda: two(params, x)) == []


def test_two_threads_wait_for_each_other(numpy_backend):
    model = nn.Linear(3, 2)
    params, x = params_of(model, numpy_backend), duoln.tensor(np.ones((1, 3), np.float32), numpy_backend)
    counts = []
    threads = [threading.Thread(target=lambda: counts.append(len(calls_in(model, lambda: [model(params, x) for _ in range(50)])))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [50] * 4


def test_an_error_names_the_innermost_layer_once(numpy_backend):
    model = nn.Sequential(nn.Linear(3, 4), inside=nn.Sequential(norm=nn.LayerNorm(5)))
    params, x = params_of(model, numpy_backend), duoln.tensor(np.ones((2, 3), np.float32), numpy_backend)
    with pytest.raises(ShapeError) as error:
        calls_in(model, lambda: model(params, x))
    assert str(error.value).startswith("[inside.norm: LayerNorm] given (2, 4) float32: [layer_norm] ") and str(error.value).count("given") == 1


def test_what_is_no_model():
    check_error(DtypeError, lambda: observed(3, print), "[observed] model: expected a Module, found 3 (int)")
    check_error(DtypeError, lambda: observed(nn.Linear(2, 3), "print"), "[observed] tell: expected a function, found 'print' (str)")
    check_error(TypeError, lambda: observed(nn.Linear(2, 3)))


def test_own_arrays_are_each_in_one_layer():
    model = nn.Sequential(body=Twice(), out=nn.Linear(3, 2))
    params = model.init(0)
    own = {path: [a.shape for a in own_arrays(layer, params, path)] for path, layer in model.modules()}
    assert own == {"": [], "body": [(3,)], "body.first": [], "body.second": [], "body.again": [(3,), (3,)],
                   "out": [(3, 2), (2,)]}
