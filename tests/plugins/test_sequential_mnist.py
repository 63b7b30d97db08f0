"""The task sequential_mnist: the kit for tasks, the order of the pixels, the published start, batch norm's two ways."""

import numpy as np
import pytest
from conftest import ON_NUMPY
from task_checks import check_task_on, root_with

import duoln
from duoln import optim
from duoln.data.mnist import read_mnist
from duoln.errors import DataMissingError
from duoln.nn import with_population
from duoln.plugins.sequential_mnist import SequentialMnist
from duoln.tasks import digits, make_config

TASK = SequentialMnist()
REAL = root_with("mnist")


@pytest.fixture(autouse=True)
def few_digits(monkeypatch):
    monkeypatch.setattr(digits, "MADE_TEST", 100)


def config(variant="ln", **settings):
    return make_config(TASK, variant, "smoke", settings)


@ON_NUMPY
def test_it_is_a_task(be):
    check_task_on(be, TASK, settings={"rows": 100, "every": 56})


def positions(monkeypatch, **settings):
    """The place in the image of each pixel that is read, for every digit of every split and of a batch."""
    image = np.arange(784, dtype=np.float32)
    sets = {name: {"x": np.tile(image, (60, 1)), "label": np.zeros(60, np.int32)} for name in ("train", "valid", "test")}
    monkeypatch.setattr("duoln.plugins.sequential_mnist.read_digits", lambda *_: (("x", "synthetic"), sets, ""))
    splits = TASK.data(config(**settings))
    return np.concatenate([splits.train(0)["x"], *(split["x"] for split in splits.evaluation.values())]).astype(int)


def test_permuted_pixels_are_all_pixels_in_one_order_for_all_digits_and_seeds(monkeypatch):
    read = positions(monkeypatch, every=1)
    assert np.array_equal(np.sort(read[0]), np.arange(784)) and not np.array_equal(read[0], np.arange(784))
    assert (read == read[0]).all() and np.array_equal(read, positions(monkeypatch, every=1, seed=5))
    assert np.array_equal(positions(monkeypatch, every=16), read[:, ::16])


def test_without_permutation_the_rows_of_the_image_are_read(monkeypatch):
    assert (positions(monkeypatch, every=1, permuted=False) == np.arange(784)).all()


@pytest.mark.long
@pytest.mark.skipif(REAL is None, reason="DUOLN_DATA has no MNIST")
def test_the_splits_of_the_published_code():
    splits, given = TASK.data(make_config(TASK, "ln", "paper", {"permuted": False}), REAL), read_mnist(REAL)
    assert splits.dataset == ("MNIST", "original") and splits.steps_per_epoch == 500
    for name, (images, labels) in {"valid": (a[50_000:] for a in given["train"]), "test": given["test"]}.items():
        assert len(labels) == 10_000 and np.array_equal(splits.evaluation[name]["label"], labels)
        assert np.array_equal(splits.evaluation[name]["x"] * 255, images.reshape(-1, 784))
    drawn = np.concatenate([splits.train(k)["x"] for k in range(500)]).sum(axis=1, dtype=np.float64)
    images = given["train"].images[:50_000].reshape(-1, 784).astype(np.float32) / np.float32(255)
    assert np.allclose(np.sort(drawn), np.sort(images.sum(axis=1, dtype=np.float64)))


@pytest.mark.parametrize("preset", ["paper", "short"])
def test_other_data_are_refused(preset, tmp_path, monkeypatch):
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path))
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path))
    monkeypatch.setenv("DUOLN_OFFLINE", "1")
    with pytest.raises(DataMissingError, match="mnist"):
        TASK.data(make_config(TASK, "ln", preset))


@pytest.mark.parametrize(("variant", "gain"), [("none", None), ("ln", 1.0), ("bn", np.float32(0.1)),
                                               ("ln-gain-0.1", np.float32(0.1))])
def test_the_published_start(variant, gain):
    cell = TASK.model(config(variant, hidden=12)).init(0)["cell"]
    i, f, g, o = np.split(cell["w_h"], 4, axis=1)
    together = np.concatenate((i, f, o), axis=1)
    assert np.array_equal(g, np.eye(12)) and np.allclose(together @ together.T, np.eye(12), atol=1e-6)
    assert np.isclose((cell["w_x"] ** 2).sum(), 1)
    assert np.array_equal(cell["bias"], np.repeat([0, 1, 0, 0], 12)) and not cell["c0"].any()
    assert {float(a) for name in cell if name.startswith("gain") for a in cell[name]} == ({gain} if gain else set())


def test_the_published_optimizer():
    optimizer = TASK.optimizer(make_config(TASK, "bn", "paper"), 1000)
    assert optimizer == optim.RMSProp(learning_rate=1e-3, beta=0.9, eps=1e-5, clip=optim.clip_global_norm(1.0))


def norm_of_gradients(model, params, batch, be):
    tensors = duoln.to_tensors(batch, be)
    with np.errstate(all="ignore"):
        _, gradients = duoln.value_and_grad(lambda p: TASK.loss(model, p, tensors))(params)
        return optim.global_norm(gradients).item()


@ON_NUMPY
@pytest.mark.parametrize(("start", "finite"), [(1, True), (0, False)])
def test_from_a_first_state_of_0_layer_norm_has_no_finite_gradient(be, start, finite):
    """Of a digit whose first 60 pixels are 0: each norm of a state of 0 multiplies gradients by 316."""
    x = np.zeros((3, 64), np.float32)
    x[:, 60:] = 0.5
    model = TASK.model(config())
    params = duoln.init(model, 0, be)
    params["cell"]["h0"] = params["cell"]["h0"] * start
    assert np.isfinite(norm_of_gradients(model, params, {"x": x, "label": np.array([1, 2, 3], np.int32)}, be)) == finite


def test_batch_norm_evaluates_by_the_statistics_of_each_time_step(be):
    """Of the population: an evaluated digit has its own result, and a training digit depends on its batch."""
    splits, model = TASK.data(config("bn")), TASK.model(config("bn"))
    params = duoln.init(model, 0, be)
    x = splits.evaluation["valid"]["x"][:20]

    def logits(params, x):
        return model(params, duoln.tensor(x, be)).numpy()

    assert np.abs(logits(params, x)[:5] - logits(params, x[:5])).max() > 1e-3
    batches = [duoln.to_tensors(splits.train(k), be) for k in range(2)]
    by_population = with_population(model, params, batches, lambda p, batch: TASK.population(model, p, batch))
    assert by_population["cell"]["mean_h"].shape == (x.shape[1], 4 * 16)
    assert np.allclose(logits(by_population, x)[:5], logits(by_population, x[:5]), atol=1e-5)


def test_noise_is_of_the_update_and_of_training_alone():
    splits = TASK.data(config("bn", noise=0.1))
    first, again, second = splits.train(0)["noise"], TASK.data(config("bn", noise=0.1)).train(0)["noise"], splits.train(1)["noise"]
    assert first.shape == (50, 16) and first.dtype == np.float32 and 0.08 < first.std() < 0.12
    assert np.array_equal(first, again) and not np.array_equal(first, second)
    assert all("noise" not in split for split in splits.evaluation.values()) and "noise" not in TASK.data(config()).train(0)


@ON_NUMPY
@pytest.mark.parametrize(("noise", "small"), [(0.1, True), (0.0, False)])
def test_digits_that_begin_alike_need_noise_for_batch_norm(be, noise, small):
    x = np.zeros((8, 64), np.float32)
    x[:, 60:] = np.linspace(0, 1, 32).reshape(8, 4)
    cfg = config("bn", rows=100, batch_size=8, noise=noise)
    model = TASK.model(cfg)
    norm = norm_of_gradients(model, duoln.init(model, 0, be), {**TASK.data(cfg).train(0), "x": x}, be)
    assert (norm < 1e3) == small
