"""The DRAW task: the kit for tasks, the network against plain NumPy, its gradient, the noise, the metrics."""


import numpy as np
import pytest
from conftest import ON_NUMPY
from task_checks import check_peer, check_task_on, lstm_reference

from duoln import tree
from duoln.errors import ShapeError, UsageError
from duoln.plugins.draw import data, task
from duoln.plugins.draw.model import Draw
from duoln.plugins.draw.task import DrawTask
from duoln.randomness import Stream
from duoln.runtime import to_tensors
from duoln.tasks import make_config
from duoln.testing import check_close, check_error
from duoln.testing.references import sigmoid

TASK = DrawTask()
TINY = {"glimpses": 2, "hidden": 5, "latent": 3}


@ON_NUMPY
def test_it_is_a_task(be):
    check_task_on(be, TASK, steps=2, settings={**TINY, "rows": 60})


# The network, from the equations ------------------------------------------------------------------------

def _bank(middle, log_variance, log_delta, n):
    means = middle + (np.arange(n) - n / 2 + 0.5) * 27 / (n - 1) * np.exp(log_delta)
    f = np.exp(-(np.arange(28) - means[:, None]) ** 2 / (2 * np.exp(log_variance)))
    return f / (f.sum(1, keepdims=True) + 1e-4)


def _banks(where, n):
    gx, gy, log_variance, log_delta, log_gamma = where
    fx, fy = (_bank((g + 1) / 2 * 28, log_variance, log_delta, n) for g in (gx, gy))
    return fy, fx, np.exp(log_gamma)


def _reference(p, image, noise, read=2, write=5):
    """(missed, divergence) of one image, one glimpse after another, in float64."""
    latent = noise.shape[1]
    canvas, x = np.zeros((28, 28)), image.reshape(28, 28)
    h_enc = c_enc = h_dec = c_dec = np.zeros(len(p["look"]["weight"]))
    divergence = 0.0
    for e in noise:
        looked = h_dec @ p["look"]["weight"] + p["look"]["bias"]
        fy, fx, gamma = _banks(looked[:5], read)
        error = x - sigmoid(canvas)
        r = gamma * np.concatenate([(fy @ a @ fx.T).ravel() for a in (x, error)])
        h_enc, c_enc = lstm_reference(p["encoder"], np.concatenate([r, h_dec]), h_enc, c_enc)
        s = h_enc @ p["posterior"]["weight"] + p["posterior"]["bias"]
        mean, sigma = s[:latent], np.exp(s[latent:])
        for m, v in zip(mean, sigma, strict=True):
            divergence += 0.5 * (m * m + v * v - 1) - np.log(v)
        h_dec, c_dec = lstm_reference(p["decoder"], mean + sigma * e, h_dec, c_dec)
        looked = h_dec @ p["look"]["weight"] + p["look"]["bias"]
        fy, fx, gamma = _banks(looked[5:10], write)
        canvas = canvas + fy.T @ looked[10:].reshape(write, write) @ fx / gamma
    chance = sigmoid(canvas)
    return -(x * np.log(chance) + (1 - x) * np.log(1 - chance)).sum(), divergence


def _start(norm, scale=1.0, read=2, write=5):
    model = Draw(2, 5, 3, read, write, norm, "fan-in")
    rng = np.random.default_rng(7)
    # Biases and gains away from their start, so that each of them matters.
    params = tree.map(lambda a: a.astype(np.float64) + (0.3 * rng.standard_normal(a.shape) if a.ndim == 1 else 0.0),
                      model.init(Stream(3, "init")))
    x = (rng.random((4, 784)) < 0.3).astype(np.float64)
    return model, params, x, rng.standard_normal((2, 4, 3))


@ON_NUMPY
@pytest.mark.parametrize("norm", ["none", "layer-cell"])
def test_the_network_against_plain_numpy(norm, be):
    model, params, x, noise = _start(norm)
    expected = np.array([_reference(params, x[i], noise[:, i]) for i in range(4)])
    for dtype in set(be.dtypes) & {"float64", "float32"}:
        cast = tree.map(lambda a, d=dtype: a.astype(d), {"params": params, "x": x, "noise": noise})
        t = to_tensors(cast, be)
        nats = model(t["params"], {"x": t["x"], "noise": t["noise"]}).numpy()
        check_close(nats, expected, 1e-12 if dtype == "float64" and be.name == "numpy" else 2e-5, f"bits on {be.name} in {dtype}")


def test_weight_norm_starts_as_the_function_it_replaces_and_ignores_the_length_of_directions(numpy_backend):
    batch = TASK.data(_tiny_config("none")).train(0)
    started = {}
    for variant in ("none", "wn"):
        cfg = _tiny_config(variant)
        started[variant] = TASK.model(cfg), TASK.model(cfg).init(Stream(0, "init"))
    plain, params = started["none"]
    normed, directions = started["wn"]
    assert {p for p, _ in tree.items(directions) if p.endswith("direction")} == {
        f"{name}.direction" for name in ("encoder.w_x", "encoder.w_h", "decoder.w_x", "decoder.w_h",
                                         "posterior.weight", "look.weight")}
    tensors = to_tensors(batch, numpy_backend)
    first = plain(to_tensors(params, numpy_backend), tensors).numpy()
    check_close(normed(to_tensors(directions, numpy_backend), tensors).numpy(), first, 1e-5, "at the start")
    directions["encoder"]["w_h"]["direction"] *= 7
    check_close(normed(to_tensors(directions, numpy_backend), tensors).numpy(), first, 1e-5, "longer directions")


def _tiny_config(variant, **settings):
    return make_config(TASK, variant, "smoke", {**TINY, "batch_size": 6, "rows": 60, **settings})


# The bound ----------------------------------------------------------------------------------------------

def test_the_divergence_has_half_a_nat_for_every_latent_dimension_of_every_glimpse(numpy_backend):
    """With mu = 0 and sigma = e the constant is all that differs between readings: -T latent / 2, not -T / 2."""
    cfg = _tiny_config("none")
    model = TASK.model(cfg)
    params = tree.map(np.zeros_like, model.init(Stream(0, "init")))
    params["posterior"]["bias"][cfg.latent:] = 1.0
    batch = TASK.data(cfg).train(0)
    nats = model(to_tensors(params, numpy_backend), to_tensors(batch, numpy_backend)).numpy()
    each = 0.5 * np.e ** 2 - 1.0
    np.testing.assert_allclose(nats[:, 1], cfg.glimpses * cfg.latent * (each - 0.5), rtol=1e-6)
    np.testing.assert_allclose(nats[:, 0], 784 * np.log(2), rtol=1e-6)  # an empty canvas


def test_noise_belongs_to_the_step_and_is_the_same_on_every_backend():
    splits = TASK.data(_tiny_config("ln"))
    first, next_step = splits.train(3), splits.train(4)
    assert not np.array_equal(first["noise"], next_step["noise"])
    assert first["noise"].shape == (2, 6, 3) and first["noise"].dtype == np.float32
    many = data.noise(0, "train", 0, (10, 100, 20))
    assert abs(many.mean()) < 0.03 and abs(many.std() - 1) < 0.03


def test_metrics_are_means_over_a_whole_split_with_noise_of_its_own():
    splits = TASK.data(_tiny_config("ln", evaluate_images=700))
    split = splits.evaluation["test"]
    assert len(split["x"]) == 700 and split["x"].dtype == np.uint8
    c_norm = []

    def predict(batch):
        c_norm.append(batch)
        return np.stack((batch["x"].sum(1), batch["noise"].sum((0, 2))), axis=1)

    metrics = TASK.metrics(predict, split)
    again = TASK.metrics(predict, split)
    assert metrics == again and metrics["bound"] == metrics["reconstruction"] + metrics["divergence"]
    assert metrics["reconstruction"] == pytest.approx(split["x"].sum(1).mean())
    half = len(c_norm) // 2
    assert sum(len(b["x"]) for b in c_norm[:half]) == 700
    assert not np.array_equal(c_norm[0]["noise"][:, :200], c_norm[1]["noise"][:, :200])


def test_made_digits_are_binary_and_mostly_ground():
    x = TASK.data(_tiny_config("ln")).train(0)["x"]
    assert set(np.unique(x)) == {0.0, 1.0} and 0.05 < x.mean() < 0.25


def test_rows_are_the_images_that_it_trains_on():
    whole, few = (TASK.data(_tiny_config("ln", rows=rows, evaluate_images=None)) for rows in (None, 37))
    assert np.array_equal(few.evaluation["train"]["x"], data._synthetic_digits()[1]["train"][:37])
    assert few.steps_per_epoch == 37 // 6 < whole.steps_per_epoch
    for split in ("valid", "test"):
        assert np.array_equal(few.evaluation[split]["x"], whole.evaluation[split]["x"])


def test_a_capped_split_is_spread_over_the_file():
    images = np.arange(10_000)
    assert list(data._spread(images, 4)) == [0, 2500, 5000, 7500]
    assert np.array_equal(data._spread(images, 20_000), images)


# Options ------------------------------------------------------------------------------------------------

def test_the_network_of_the_paper():
    cfg = make_config(TASK, "ln", "paper")
    start = TASK.model(cfg).init(Stream(0, "init"))
    assert start["encoder"]["w_x"].shape == (8 + 256, 1024) and start["decoder"]["w_x"].shape == (100, 1024)
    assert start["posterior"]["weight"].shape == (256, 200) and start["look"]["weight"].shape == (256, 5 + 5 + 25)
    assert {p for p, _ in tree.items(start) if "gain" in p} == {"encoder.gain_c", "decoder.gain_c"}
    assert all(not a.any() for p, a in tree.items(start) if p.endswith(("bias", "bias_c")))


def test_starts():
    for start, spread in (("gaussian", 0.01), ("fan-in", 256 ** -0.5 / np.sqrt(3))):
        params = TASK.model(make_config(TASK, "ln", "paper", {"start": start})).init(Stream(0, "init"))
        for weight in (params["posterior"]["weight"], params["decoder"]["w_h"]):
            assert weight.std() == pytest.approx(spread, rel=0.02)


def test_gradients_have_a_norm_of_10_at_most(numpy_backend):
    clip = TASK.optimizer(_tiny_config("ln"), 1000).clip
    for given, expected in (([3.0, -4.0], [3, -4]), ([30.0, -40.0], [6, -8])):
        clipped = clip(to_tensors({"w": np.array(given, np.float32)}, numpy_backend))
        np.testing.assert_allclose(clipped["w"].numpy(), expected, rtol=1e-6)


def test_settings_that_do_not_fit(numpy_backend):
    check_error(ShapeError, lambda: Draw(2, 5, 3, 1, 5, "none", "fan-in"), "2 x 2", "1")
    check_error(UsageError, lambda: TASK.data(_tiny_config("ln", rows=10 ** 6)), "rows", "1000000")
    check_error(UsageError, lambda: TASK.data(_tiny_config("ln", evaluate_images=0)), "evaluate_images", "0")
    model, params, x, noise = _start("none")
    t = to_tensors({"p": params, "x": x, "noise": noise}, numpy_backend)
    check_error(ShapeError, lambda: model(t["p"], {"x": t["x"], "noise": t["noise"][:1]}), "noise", "(2, 4, 3)", "(1, 4, 3)")
    check_error(ShapeError, lambda: model(t["p"], {"x": t["x"][:, :700], "noise": t["noise"]}), "784", "700")


# Elsewhere ----------------------------------------------------------------------------------------------

@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize("variant", ["none", "wn", "ln"])
def test_the_peer_trains_as_we_do(variant, monkeypatch):
    monkeypatch.setattr(task, "LARGEST_NORM", 0.05)  # so that the gradients are clipped
    cfg = _tiny_config(variant, hidden=12)
    check_peer(TASK, variant, cfg, 4, rtol=1e-5)
