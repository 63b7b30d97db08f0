"""The ConvNet task: the kit for tasks, the network against plain NumPy, noise and masks, metrics, options, the peer."""


import numpy as np
import pytest
from conftest import ON_NUMPY
from task_checks import check_peer, check_task_on

from duoln import nn, tree
from duoln.errors import ShapeError, UsageError
from duoln.plugins.convnet import data
from duoln.plugins.convnet.model import STARTS, ConvNet, mask_shapes
from duoln.plugins.convnet.task import ConvNetTask
from duoln.randomness import Stream
from duoln.runtime import to_tensors
from duoln.tasks import make_config
from duoln.testing import check_close, check_error
from duoln.training.trainer import Trainer

TASK = ConvNetTask()


@pytest.fixture(autouse=True)
def _few_images(monkeypatch):
    monkeypatch.setattr(data, "MADE", {"train": 60, "test": 20})


def _config(variant, **settings):
    return make_config(TASK, variant, "smoke", {"channels": 2, "batch_size": 6, **settings})


@ON_NUMPY
def test_it_is_a_task(be):
    check_task_on(be, TASK, steps=2, settings={"channels": 2, "batch_size": 6})


# The network, from its description ----------------------------------------------------------------------

def _conv(x, weight, padding):
    x = np.pad(x, ((padding, padding), (padding, padding), (0, 0)))
    size = weight.shape[0]
    out = np.empty((x.shape[0] - size + 1, x.shape[1] - size + 1, weight.shape[3]))
    for i, j in np.ndindex(out.shape[:2]):
        out[i, j] = np.tensordot(x[i:i + size, j:j + size], weight, 3)
    return out


def _weight(p):
    if "weight" in p:
        return p["weight"]
    v = p["direction"]
    return p["gain"] * v / np.sqrt((v ** 2).sum(tuple(range(v.ndim - 1))))


def _reference(params, batch, norm, gains):
    """Logits of a batch in float64: images one by one, all of them together only in batch norm."""
    images = list(batch["x"] + batch["noise"])
    for name, paddings in (("first", (1, 1, 1)), ("second", (1, 1, 1)), ("third", (0, 0, 0))):
        for block, padding in zip(params[name].values(), paddings, strict=True):
            images = [_conv(x, _weight(block["conv"]), padding) + block["conv"].get("bias", 0.0) for x in images]
            if norm == "layer":
                shape = images[0].shape if gains == "unit" else images[0].shape[2:]
                images = [(x - x.mean()) / np.sqrt(x.var() + 1e-5) * block["norm"]["gain"].reshape(shape)
                          + block["norm"]["bias"].reshape(shape) for x in images]
            elif norm == "batch":
                whole = np.stack(images)
                mean, variance = whole.mean((0, 1, 2)), whole.var((0, 1, 2))
                images = list((whole - mean) / np.sqrt(variance + 1e-5) * block["norm"]["gain"] + block["norm"]["bias"])
            images = [np.where(x > 0, x, 0.1 * x) for x in images]
        if name != "third":
            pooled = [np.empty((x.shape[0] // 2, x.shape[1] // 2, x.shape[2])) for x in images]
            for x, y in zip(images, pooled, strict=True):
                for i, j in np.ndindex(y.shape[:2]):
                    y[i, j] = x[2 * i:2 * i + 2, 2 * j:2 * j + 2].max((0, 1))
            images = [y * mask for y, mask in zip(pooled, batch[name], strict=True)]
    return np.stack([x.mean((0, 1)) @ _weight(params["logits"]) + params["logits"]["bias"] for x in images])


def _start(norm, gains="unit", image=(13, 12, 2), count=3):
    """A small network with biases and gains away from their start, so that each of them matters."""
    model = ConvNet(image, 2, norm, gains, "he")
    rng = np.random.default_rng(7)
    params = tree.map(lambda a: a.astype(np.float64) + (0.3 * rng.standard_normal(a.shape) if a.ndim == 1 else 0.0),
                      model.init(Stream(3, "init")))
    batch = {"x": rng.standard_normal((count, *image)), "label": np.arange(count, dtype=np.int32)}
    batch["noise"] = 0.2 * rng.standard_normal(batch["x"].shape)
    batch |= {name: 2.0 * (rng.random((count, *shape)) < 0.5) for name, shape in mask_shapes(image, 2).items()}
    return model, params, batch


@pytest.mark.parametrize(("norm", "gains"), [("none", "unit"), ("batch", "unit"), ("layer", "unit"),
                                             ("layer", "channel"), ("weight", "unit")])
def test_the_network_against_plain_numpy(norm, gains, be):
    model, params, batch = _start(norm, gains)
    expected = _reference(params, batch, norm, gains)
    for dtype in set(be.dtypes) & {"float64", "float32"}:
        cast = tree.map(lambda a, d=dtype: a.astype(d) if a.dtype.kind == "f" else a, {"params": params, "batch": batch})
        t = to_tensors(cast, be)
        logits = model(t["params"], t["batch"]).numpy()
        check_close(logits, expected, 1e-11 if dtype == "float64" and be.name == "numpy" else 5e-5, f"{norm} on {be.name}")


def test_an_evaluation_sees_the_images_as_they_are(numpy_backend):
    model, params, batch = _start("layer")
    plain = {"x": batch["x"]}
    ones = {"x": batch["x"], "noise": 0 * batch["noise"], "first": np.ones_like(batch["first"]), "second": np.ones_like(batch["second"])}
    logits = [model(to_tensors(params, numpy_backend), to_tensors(b, numpy_backend)).numpy() for b in (plain, ones, batch)]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert not np.allclose(logits[0], logits[2])


# The protocol -------------------------------------------------------------------------------------------

def test_the_network_of_the_protocol():
    for variant in TASK.variants:
        start = TASK.model(make_config(TASK, variant, "paper")).init(Stream(0, "init"))
        name = "direction" if variant == "wn" else "weight"
        shapes = [start[stage][f"block{k}"]["conv"][name].shape for stage in ("first", "second", "third") for k in (1, 2, 3)]
        assert shapes == [(3, 3, 3, 96), (3, 3, 96, 96), (3, 3, 96, 96), (3, 3, 96, 192), (3, 3, 192, 192), (3, 3, 192, 192),
                          (3, 3, 192, 192), (1, 1, 192, 192), (1, 1, 192, 192)]
        assert start["logits"][name].shape == (192, 10)
        big = start["second"]["block2"]["conv"][name]
        assert big.std() == pytest.approx(0.05, rel=0.01) and abs(big.mean()) < 1e-3
        has = {"bias" in start[s][b]["conv"] for s in ("first", "second", "third") for b in start[s]}
        assert has == {variant in ("none", "wn")}


@pytest.mark.parametrize(("gains", "widths"), [("unit", [32 * 32 * 96] * 3 + [16 * 16 * 192] * 3 + [6 * 6 * 192] * 3),
                                               ("channel", [96] * 3 + [192] * 6)])
def test_gains_of_each_unit_or_of_each_channel(gains, widths):
    start = TASK.model(make_config(TASK, "ln", "paper", {"gains": gains})).init(Stream(0, "init"))
    norms = [block["norm"] for stage in ("first", "second", "third") for block in start[stage].values()]
    assert [n["gain"].shape for n in norms] == [(w,) for w in widths] == [n["bias"].shape for n in norms]
    assert all((n["gain"] == 1).all() and (n["bias"] == 0).all() for n in norms)


def test_starts():
    stream = Stream(0, "x")
    assert STARTS["gaussian"](stream, (3, 3, 64, 64)).std() == pytest.approx(0.05, rel=0.02)
    assert STARTS["he"](stream, (3, 3, 64, 64)).std() == pytest.approx((2 / 576) ** 0.5, rel=0.02)


def test_the_rate_goes_down_along_a_line():
    rate = TASK.optimizer(make_config(TASK, "ln", "paper"), 1000).rate_at
    assert [rate(k) for k in (0, 50_000, 75_000, 90_000, 100_000, 200_000)] == pytest.approx([1e-3, 1e-3, 5e-4, 2e-4, 0, 0])
    assert TASK.optimizer(make_config(TASK, "ln", "small"), 1000).rate_at(10 ** 6) == 1e-3


@pytest.mark.parametrize(("settings", "updates"), [
    ({"dataset": "mnist"}, 110_000), ({"batch_size": 50}, 200_000), ({"epochs": 400}, 200_000), ({"rows": 1_000}, 2_000)])
def test_the_rate_goes_down_over_the_updates_that_the_run_has(settings, updates):
    rate = TASK.optimizer(make_config(TASK, "ln", "paper", settings), 1000).rate_at
    assert [rate(k * updates // 4) for k in range(5)] == pytest.approx([1e-3, 1e-3, 1e-3, 5e-4, 0])
    assert rate(updates - 1) > 0


# Noise and masks ----------------------------------------------------------------------------------------

def test_noise_and_masks_belong_to_the_step():
    splits = TASK.data(_config("ln"))
    first, next_step = splits.train(3), splits.train(4)
    assert first.keys() == {"x", "label", "noise", "first", "second"}
    assert all(not np.array_equal(first[k], next_step[k]) for k in ("x", "noise", "first", "second"))
    assert first["first"].shape == (6, 16, 16, 2) and first["second"].shape == (6, 8, 8, 4)


@pytest.mark.parametrize(("dropout", "values"), [(0.5, {0.0, 2.0}), (0.75, {0.0, 4.0}), (0.0, {1.0})])
def test_masks_keep_the_mean(dropout, values):
    mask = TASK.data(_config("ln", dropout=dropout, channels=16)).train(0)["first"]
    assert set(np.unique(mask)) == values and mask.mean() == pytest.approx(1, abs=0.05) and mask.dtype == np.float32


def test_noise_has_the_deviation_that_is_asked_for():
    noise = TASK.data(_config("ln", noise=0.3)).train(2)["noise"]
    assert noise.std() == pytest.approx(0.3, rel=0.02) and abs(noise.mean()) < 0.01 and noise.dtype == np.float32
    assert not TASK.data(_config("ln", noise=0.0)).train(2)["noise"].any()


# Metrics and settings -----------------------------------------------------------------------------------

def test_settings_that_do_not_fit():
    for wrong, words in (({"rows": 0}, "rows"), ({"evaluate_images": 0}, "evaluate_images"), ({"dropout": 1.0}, "dropout"),
                         ({"dropout": -0.1}, "dropout"), ({"noise": -1.0}, "noise"), ({"noise": float("inf")}, "noise"),
                         ({"batch_size": 61}, "batch_size")):
        check_error(UsageError, lambda w=wrong: TASK.data(_config("ln", **w)), words, str(next(iter(wrong.values()))))
    check_error(UsageError, lambda: _config("ln", dataset="svhn"), "cifar10, mnist", "svhn")
    check_error(ShapeError, lambda: ConvNet((11, 32, 3), 4, "none", "unit", "he"), "12 x 12", "(11, 32)")
    check_error(ShapeError, lambda: ConvNet((32, 32, 3), 0, "none", "unit", "he"), "1 channel", "0")


# Elsewhere ----------------------------------------------------------------------------------------------

def test_batch_norm_is_evaluated_by_the_statistics_of_undisturbed_images(numpy_backend):
    """Neither noise, nor masks, nor the other images of a batch change the result of an evaluation."""
    evaluations = []
    for disturbed in ({"noise": 0.0, "dropout": 0.0}, {"noise": 0.5, "dropout": 0.5}):
        cfg = _config("bn", **disturbed)
        trainer = Trainer(TASK, "bn", cfg, TASK.data(cfg), numpy_backend)
        evaluations.append(trainer.evaluate())
    assert evaluations[0] == evaluations[1]
    params = nn.with_population(trainer.model, trainer.state["params"], [trainer.splits.train(0)],
                                lambda params, batch: TASK.population(trainer.model, params, to_tensors(batch, numpy_backend)))
    x = trainer.splits.evaluation["test"]["x"]
    whole, alone = (trainer.model(params, to_tensors({"x": a}, numpy_backend)).numpy() for a in (x[:5], x[:1]))
    np.testing.assert_allclose(whole[:1], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize(("variant", "gains"), [("none", "unit"), ("bn", "unit"), ("ln", "unit"), ("ln", "channel"),
                                                ("wn", "unit")])
@pytest.mark.parametrize("dataset", ["cifar10", "mnist"])
def test_the_peer_trains_as_we_do(variant, gains, dataset):
    cfg = _config(variant, gains=gains, dataset=dataset, decay=0.9, channels=3)
    check_peer(TASK, variant, cfg, 4, rtol=1e-4)
