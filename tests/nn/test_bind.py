"""`self.bind(params)`: children that know their parameters compute what the explicit calls do."""

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.errors import ShapeError
from duoln.testing import check_error


class Block(nn.Module):
    """Two layers, and a method that takes parameters."""

    def __init__(self, width):
        self.hidden, self.norm, self.width, self.gain = nn.Linear(width, width), nn.LayerNorm(width), width, 3.0

    def weights(self, rng):
        return {"gain": np.full(self.width, 2.0, np.float32)}

    def __call__(self, params, x, residual=None):
        m = self.bind(params)
        y, total = m.norm.of_sum(m.hidden(x), x if residual is None else residual)
        return m.scaled(y) + total

    def scaled(self, params, y):
        return y * params["gain"]

    def doubled(self, y):
        return y + y


class Net(nn.Module):
    """The same module with and without `bind`."""

    def __init__(self, bound, width=4):
        self.table, self.block, self.blocks = nn.Embedding(5, width), Block(width), [Block(width), Block(width)]
        self.named, self.bound, self.func, self.args = {"a": [nn.Linear(width, 3)]}, bound, nn.Tanh(), nn.LayerNorm(width)

    def __call__(self, params, ids):
        return (self.with_bind if self.bound else self.without)(params, ids)

    def with_bind(self, params, ids):
        m = self.bind(params)
        x = m.table(ids)
        x = m.args(m.func(m.block(x, residual=x)))
        for block in m.blocks:
            x = block(x) + block.hidden(x) * block.gain
        return m.named["a"][0](x), m.table.as_linear(x), m.block.hidden(x), m.blocks[1].doubled(x)

    def without(self, params, ids):
        x = self.table(params["table"], ids)
        x = self.args(params["args"], self.func(params["func"], self.block(params["block"], x, residual=x)))
        for block, own in zip(self.blocks, params["blocks"], strict=True):
            x = block(own, x) + block.hidden(own["hidden"], x) * own["gain"]
        return (self.named["a"][0](params["named"]["a"][0], x), self.table.as_linear(params["table"], x),
                self.block.hidden(params["block"]["hidden"], x), x + x)


def test_it_computes_what_explicit_calls_do(be):
    params, ids = duoln.to_tensors(Net(True).init(0), be), duoln.tensor([[1, 4, 0]], be, "int32")
    for with_bind, without in zip(Net(True)(params, ids), Net(False)(params, ids), strict=True):
        np.testing.assert_array_equal(with_bind.numpy(), without.numpy())

    def gradient(model):
        return duoln.compile(lambda p, ids: duoln.value_and_grad(lambda q: sum(ops.sum(ops.square(y)) for y in model(q, ids)))(p)[1])

    of_bound, of_explicit = gradient(Net(True)), gradient(Net(False))
    for _ in range(2):
        for mine, second in duoln.tree.zipped(of_bound(params, ids), of_explicit(params, ids)):
            np.testing.assert_array_equal(mine.numpy(), second.numpy())


def test_arrays_come_before_settings_of_the_same_name(numpy_backend):
    block = Block(4)
    params = duoln.to_tensors(block.init(0), numpy_backend)
    m = block.bind(params)
    assert m.gain is params["gain"] and m.width == 4 and m.norm.eps == 1e-5 and m.norm.gain is params["norm"]["gain"]
    assert repr(m) == repr(block) and m.children() == block.children()


def test_masks_and_statistics_reach_bound_children(numpy_backend):
    class Drops(nn.Module):
        def __init__(self):
            self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm(2)

        def __call__(self, params, x):
            m = self.bind(params)
            return m.norm(m.drop(x))

    model, x, seen = Drops(), duoln.tensor(np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32), numpy_backend), []
    params = duoln.to_tensors(model.init(0), numpy_backend)
    masked = nn.with_masks(params, nn.DropoutMasks(model, 0)(0, params, x))
    assert (model(masked, x).numpy() != model(params, x).numpy()).any()
    assert "mean" in nn.with_population(model, params, [x])["norm"]
    with duoln.observed(model, lambda path, layer, output: seen.append(path)):
        model(params, x)
    assert seen == ["drop", "norm", ""]


@pytest.mark.parametrize(("call", "kind", "words"), [
    (lambda block, params, x: block.bind({"gain": params["gain"]}).hidden(x), ShapeError, ["[Block] expected parameters with 'hidden', found gain"]),
    (lambda block, params, x: block.bind({}).norm(x), ShapeError, ["[Block] expected parameters with 'norm', found none"]),
    (lambda block, params, x: block.bind(params["hidden"]).norm(x), ShapeError, ["[Block] expected parameters with 'norm', found bias, weight"]),
    (lambda block, params, x: block.bind({**params, "hidden": {}}).hidden(x), ShapeError, ["[Linear] expected parameters with 'weight'"]),
    (lambda block, params, x: block.bind(params).hiden(x), AttributeError, ["'Block' object has no attribute 'hiden'; its parameters are gain, hidden, norm"]),
    (lambda block, params, x: block.bind(params).forward(x), AttributeError, ["__call__(self, params, x)"]),
    (lambda block, params, x: Net(True).bind({"blocks": [params]}).blocks, ShapeError, ["[Net] expected parameters with '1', found 0"]),
    (lambda block, params, x: Net(True).bind({"named": {"b": [params]}}).named, ShapeError, ["[Net] expected parameters with 'a', found b"])])
def test_errors_are_those_of_explicit_calls(call, kind, words, numpy_backend):
    params, x = duoln.to_tensors(Block(4).init(0), numpy_backend), duoln.tensor(np.ones((2, 4), np.float32), numpy_backend)
    check_error(kind, lambda: call(Block(4), params, x), *words)
