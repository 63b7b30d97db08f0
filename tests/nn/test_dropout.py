"""`nn.Dropout`, and the masks of a whole model."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import duoln
from duoln import nn, ops
from duoln.errors import CompileWarning, DtypeError, GradientWarning, ShapeError, UsageError
from duoln.randomness import Stream
from duoln.testing import check_error


def network(p=0.5):
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(p), nn.Linear(8, 2))


@pytest.fixture
def x(be, rng):
    return duoln.tensor(rng.standard_normal((64, 3)).astype(np.float32), be)


def test_the_equation(be, x):
    model, masks = network(0.25), {}
    params = duoln.init(model, 0, be)
    for update in range(2):
        [(path, mask)] = nn.DropoutMasks(model, 7)(update, params, x).items()
        drawn = Stream(7, f"dropout.{path}", step=update).keep_mask((64, 8), 0.75) / np.float32(0.75)
        np.testing.assert_array_equal(mask.numpy(), drawn)
        masks[update] = mask
        hidden = np.maximum((model[:1](params, x)).numpy(), 0)
        expected = model[3](params["3"], duoln.tensor(hidden * drawn, be))
        np.testing.assert_array_equal(model(nn.with_masks(params, {path: mask}), x).numpy(), expected.numpy())
    assert path == "2" and not np.array_equal(masks[0].numpy(), masks[1].numpy())
    assert set(np.unique(masks[0].numpy())) == {0, np.float32(1 / 0.75)} and abs(masks[0].numpy().mean() - 1) < 0.1


def test_without_masks_nothing_is_dropped(be, x):
    model, plain = network(), nn.Sequential(*(layer for layer in network() if not isinstance(layer, nn.Dropout)))
    params = duoln.init(model, 0, be)
    of_plain = {name: params[key] for name, key in zip("012", "013", strict=True) if key != "1"}
    np.testing.assert_array_equal(model(params, x).numpy(), plain({**of_plain, "1": {}}, x).numpy())
    layer = nn.Dropout(0.9)
    assert layer({}, x) is x
    masks = nn.DropoutMasks(network(0.0), 0)(0, duoln.init(network(0.0), 0, be), x)
    assert masks == {}, "p = 0 wants no mask"


def test_a_forgotten_mask_is_told(be, x):
    model = network()
    params = duoln.init(model, 0, be)
    with pytest.warns(GradientWarning, match=r"\[Dropout\] found no mask.*nn.with_masks"):
        duoln.value_and_grad(lambda p: ops.sum(model(p, x)))(params)
    with nn.no_dropout():
        duoln.value_and_grad(lambda p: ops.sum(model(p, x)))(params)
    none = network(0.0)
    duoln.value_and_grad(lambda p: ops.sum(none(p, x)))(duoln.init(none, 0, be))


def test_a_whole_model_has_a_mask_for_each_layer(numpy_backend):
    class Model(nn.Module):
        def __init__(self):
            self.words, self.rows = nn.Embedding(5, 4), nn.LSTM(4, 4, norm="layer", layers=3, dropout=0.5)
            self.block, self.last = nn.TransformerBlock(4, 2, dropout=0.5), nn.Dropout(0.5)

        def __call__(self, params, ids, scale):
            y, _ = self.rows(params["rows"], self.words(params["words"], ids))
            return self.last(params["last"], self.block(params["block"], y * scale))

    model, ids = Model(), duoln.tensor(np.zeros((6, 2), np.int32), numpy_backend)
    params, dropout = duoln.init(model, 0, numpy_backend), nn.DropoutMasks(model, 0)
    masks = dropout(0, params, ids, 2.0)
    assert sorted(masks) == ["block.attention_dropout", "block.hidden_dropout", "last", "rows.dropout1", "rows.dropout2"]
    assert len({mask.numpy().tobytes() for mask in masks.values()}) == len(masks)
    longer = dropout(0, params, duoln.tensor(np.zeros((9, 2), np.int32), numpy_backend), 2.0)
    assert longer["last"].shape == (9, 2, 4), "a batch of another shape has masks of its own shape"
    assert model(nn.with_masks(params, longer), duoln.tensor(np.zeros((9, 2), np.int32), numpy_backend), 2.0).shape == (9, 2, 4)


def test_one_layer_at_two_places_has_two_masks(numpy_backend):
    drop = nn.Dropout(0.5)
    model = nn.Sequential(drop, nn.Linear(64, 64), drop)
    x = duoln.tensor(np.ones((4, 64), np.float32), numpy_backend)
    masks = nn.DropoutMasks(model, 0)(0, duoln.init(model, 0, numpy_backend), x)
    assert sorted(masks) == ["0", "2"] and not np.array_equal(masks["0"].numpy(), masks["2"].numpy())


class Steps(nn.Module):
    """A model that calls its dropout several times."""

    def __init__(self, drop, sizes=(3, 3)):
        self.drop, self.sizes = drop, sizes

    def __call__(self, params, x):
        return sum((ops.sum(self.drop(params["drop"], x[:size])) for size in self.sizes[1:]), ops.sum(self.drop(params["drop"], x[:self.sizes[0]])))


@pytest.mark.parametrize("forward", [
    lambda model, p, x: model(duoln.tree.map(lambda leaf: leaf * 1.0, p), x), lambda model, p, x: duoln.value_and_grad(lambda p: ops.sum(model(p, x)))(p),
    lambda model, p, x: duoln.compile(lambda p, x: model(p, x))(p, x), lambda model, p, x: ThreadPoolExecutor(1).submit(model, p, x).result()],
    ids=["mapped", "differentiated", "compiled", "in a thread"])
def test_a_pass_may_do_anything_with_the_parameters(forward, be, x):
    model = network()
    with nn.no_dropout():
        masks = nn.DropoutMasks(model, 0, forward=lambda p, x: forward(model, p, x))(0, duoln.init(model, 0, be), x)
    assert masks["2"].shape == (64, 8)


def test_inputs_of_another_form_have_masks_of_their_own(numpy_backend):
    class Chosen(nn.Module):
        def __init__(self):
            self.drop = nn.Dropout(0.5)

        def __call__(self, params, x, of):
            size = {"bool": 2, "int": 3, "list": 4, "dict": 5}[type(of).__name__]
            return self.drop(params["drop"], x[:size])

    model, x = Chosen(), duoln.tensor(np.ones((6, 3), np.float32), numpy_backend)
    dropout = nn.DropoutMasks(model, 0)
    assert [dropout(0, {"drop": {}}, x, of)["drop"].shape[0] for of in (True, 1, [], {})] == [2, 3, 4, 5]
    check_error(DtypeError, lambda: dropout(0, {"drop": {}}, x, slice(3)), "[DropoutMasks]", "found slice", "forward=")


def test_parameters_of_another_dtype_have_masks_of_their_own(be):
    """Indices have the same dtype, whatever that of the values is."""
    model, ids = nn.Sequential(nn.Embedding(5, 4), nn.Dropout(0.5)), duoln.tensor([[1, 2, 3]], be)
    dropout = nn.DropoutMasks(model, 0)
    assert dropout(0, duoln.init(model, 0, be), ids)["1"].dtype == "float32"
    if "float64" in be.dtypes:
        assert dropout(0, duoln.init(model, 0, be, "float64"), ids)["1"].dtype == "float64"


def test_calls_of_one_layer(be, x):
    check_error(UsageError, lambda: nn.DropoutMasks(Steps(nn.Dropout()), 0)(0, {"drop": {}}, x),
                "[DropoutMasks]", "one call of the Dropout at 'drop'", "found 2", "shared=True")
    shared = Steps(nn.Dropout(shared=True))
    masks = nn.DropoutMasks(shared, 0)(0, {"drop": {}}, x)
    np.testing.assert_allclose(shared(nn.with_masks({"drop": {}}, masks), x).item(), 2 * (x.numpy()[:3] * masks["drop"].numpy()).sum(), rtol=1e-4)
    check_error(UsageError, lambda: nn.DropoutMasks(Steps(nn.Dropout(shared=True), (3, 2)), 0)(0, {"drop": {}}, x), "one shape", "(2, 3)", "(3, 3)")
    check_error(UsageError, lambda: nn.DropoutMasks(Steps(nn.Dropout()), 0, forward=lambda params, x: x)(0, {"drop": {}}, x), "'drop'", "found none")
    lstm, steps = nn.LSTM(3, 3, layers=2, dropout=0.5), ops.ones((4, 2, 3), be)
    check_error(UsageError, lambda: nn.DropoutMasks(lstm, 0, forward=lambda p, x: [lstm(p, x), lstm(p, x)])(0, duoln.init(lstm, 0, be), steps), "found 2",
                "share a mask, LSTM(..., dropout=nn.Dropout(0.5, shared=True))", "masks of its own")


def test_wrong_calls(be, x):
    model = network()
    params, dropout = duoln.init(model, 0, be), nn.DropoutMasks(model, 0)
    check_error(UsageError, lambda: nn.Dropout(1.0), "[Dropout] p", "[0, 1)")
    check_error(UsageError, lambda: nn.Dropout(-0.1), "[Dropout] p")
    check_error(DtypeError, lambda: nn.Dropout("half"), "[Dropout] p")
    check_error(DtypeError, lambda: nn.DropoutMasks(lambda p, x: x, 0), "model: expected a Module")
    check_error(ShapeError, lambda: nn.DropoutMasks(model, -1), "seed")
    check_error(DtypeError, lambda: dropout(0.5, params, x), "update")
    check_error(ShapeError, lambda: dropout(-1, params, x), "update")
    check_error(DtypeError, lambda: dropout(0, {}, 1.0), "expected tensors", "found none")
    check_error(ShapeError, lambda: nn.with_masks(params, {"7": x}), "[with_masks]", "'7'")
    masks = dropout(0, params, x)
    check_error(ShapeError, lambda: model(nn.with_masks(params, masks), x[:5]), "[Dropout] mask: expected shape (5, 8), found (64, 8)")
    check_error(ShapeError, lambda: nn.Dropout()(None, x), "[Dropout]")
    check_error(DtypeError, lambda: nn.with_masks(params, x), "[with_masks]")
    for layer in (nn.Dropout(), nn.Identity(), nn.ReLU(), nn.Flatten()):
        check_error(ShapeError, lambda layer=layer: layer(x), f"[{type(layer).__name__}] expected parameters", "call layer(params, x)")
    assert "mask" not in params["2"], "the parameters stay as they are"


def test_masks_are_made_outside_a_compiled_step(numpy_backend):
    """Inside, they would be the same at every call."""
    model = network()
    params, x = duoln.init(model, 0, numpy_backend), duoln.tensor(np.ones((4, 3), np.float32), numpy_backend)
    dropout = nn.DropoutMasks(model, 0)

    @duoln.compile
    def step(params, x):
        return model(nn.with_masks(params, dropout(0, params, x)), x)

    with pytest.warns(CompileWarning, match="give it as an argument"):
        for _ in range(3):
            step(params, x)
