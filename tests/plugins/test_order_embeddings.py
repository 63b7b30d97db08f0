"""The order-embedding task: the kit for tasks, the authors' equations in plain NumPy, ranks by brute force, batches."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from ops.cases import layer_norm_reference
from task_checks import check_peer

from duoln import nn, tree, value_and_grad
from duoln.errors import DivergedError, UsageError
from duoln.plugins.order_embeddings import data, peer_torch, task
from duoln.plugins.order_embeddings.corpus import CAPTIONS, Sentences
from duoln.plugins.order_embeddings.model import OrderEmbedding, clip_each_array, contrastive_loss
from duoln.plugins.order_embeddings.ops import order_violation
from duoln.plugins.order_embeddings.task import OrderEmbeddings, _errors
from duoln.randomness import Stream
from duoln.runtime import to_tensors
from duoln.tasks import make_config
from duoln.testing import check_error, check_task
from duoln.testing.references import sigmoid

TASK = OrderEmbeddings()


def test_it_is_a_task():
    check_task(TASK)


@pytest.mark.long
def test_it_is_a_task_on_cuda(gpu):
    check_task(TASK, backend=gpu, steps=2, settings={"joint_size": 8, "word_size": 4, "batch_size": 4}, agreement=False,
               gradients=False)


def test_the_network_of_the_paper():
    sizes = {}
    for variant in TASK.variants:
        model = TASK.model(make_config(TASK, variant, "paper"))
        model.sentence.recurrent_init = model.words.table_init = nn.init.zeros  # which takes no time
        sizes[variant] = sum(a.size for a in tree.leaves(model.init(Stream(0, "init"))))
    plain = 32_000 * 300 + 3 * 1024 * (300 + 1024 + 1) + 4096 * 1024 + 1024
    assert sizes == {"none": plain, "ln": plain + 4 * 3 * 1024, "sym": plain}


def test_where_weights_start():
    params = TASK.model(make_config(TASK, "ln", "smoke", {"word_size": 32})).init(Stream(0, "init"))
    cell = params["sentence"]
    for name in ("w_x", "w_h"):  # square here: orthogonal, gate by gate
        for gate in np.split(cell[name], 3, axis=1):
            np.testing.assert_allclose(gate @ gate.T, np.eye(32), atol=1e-5)
    for side in ("gain_x", "gain_h"):
        assert (cell[side][:32] == -1).all() and (cell[side][32:] == 1).all()
    assert not any(cell[name].any() for name in ("bias", "bias_x", "bias_h")) and not params["image"]["bias"].any()
    assert 0.09 < np.abs(params["words"]["table"]).max() <= 0.1
    limit = np.sqrt(6 / (288 + 32))
    assert 0.95 * limit < np.abs(params["image"]["weight"]).max() <= limit
    narrow = TASK.model(make_config(TASK, "ln", "smoke")).init(Stream(0, "init"))["sentence"]
    assert 0.09 < np.abs(narrow["w_x"]).max() <= 0.1


# Against plain NumPy ------------------------------------------------------------------------------------

def _authors_gru(cell, x, mask, normed):
    """The authors' cell (protocol 1.2): gates r and u, of which u keeps the state; norms over both gates together."""
    size = cell["w_h"].shape[0]
    z, r, new = (slice(k * size, (k + 1) * size) for k in range(3))
    sign = 1 if normed else -1
    w, u, b = (np.concatenate((a[..., r], sign * a[..., z]), -1) for a in (cell["w_x"], cell["w_h"], cell["bias"]))
    wx, ux, bx = cell["w_x"][:, new], cell["w_h"][:, new], cell["bias"][new]

    def norm(a, side, part):
        if not normed:
            return a
        gain, bias = cell[f"gain_{side}"], cell[f"bias_{side}"]
        if part == "new":
            return layer_norm_reference(a, gain[new], bias[new])
        return layer_norm_reference(a, np.concatenate((gain[r], -gain[z])), np.concatenate((bias[r], -bias[z])))

    h = np.zeros((x.shape[1], size))
    for t in range(len(x)):
        gates = sigmoid(norm(x[t] @ w + b, "x", "gates") + norm(h @ u, "h", "gates"))
        reset, keep = gates[:, :size], gates[:, size:]
        better = np.tanh(norm(x[t] @ wx + bx, "x", "new") + reset * norm(h @ ux, "h", "new"))
        h = np.where(mask[t][:, None], keep * h + (1 - keep) * better, h)
    return h


def _loss(captions, images, score, margin):
    """Pair by pair."""
    def error(s, m):
        return float(sum(max(0.0, a - b) ** 2 for a, b in zip(s, m, strict=True)) if score == "order" else -(s @ m))

    total = 0.0
    for i in range(len(captions)):
        for j in range(len(images)):
            if i != j:
                pair = error(captions[i], images[j])
                total += max(0.0, margin - pair + error(captions[i], images[i]))
                total += max(0.0, margin - pair + error(captions[j], images[j]))
    return total


def _tiny(variant, seed=0):
    """A tiny network in float64, moved off its start, with a batch of four pairs."""
    norm, score = {"none": ("none", "order"), "ln": ("layer-theano", "order"), "sym": ("none", "cosine")}[variant]
    model = OrderEmbedding(7, 3, 6, 5, norm, score, margin=0.3)
    rng = np.random.default_rng(seed)
    params = tree.map(lambda a: a + 0.5 * rng.standard_normal(a.shape), model.init(Stream(seed, "init")))
    batch = {**data.pad(Sentences.of([[2, 3, 4], [5], [6, 2], [3, 3, 3, 6]]), np.arange(4)),
             "features": rng.standard_normal((4, 6))}
    return model, params, batch


@pytest.mark.parametrize("variant", TASK.variants)
def test_points_and_loss_are_those_of_plain_numpy(variant, numpy_backend):
    model, params, batch = _tiny(variant)
    h = _authors_gru(params["sentence"], params["words"]["table"][batch["ids"]], batch["mask"], variant == "ln")
    m = batch["features"] @ params["image"]["weight"] + params["image"]["bias"]
    captions, images = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (h, m))
    if variant != "sym":
        captions, images = np.abs(captions), np.abs(images)
    tensors = to_tensors((params, batch), numpy_backend)
    np.testing.assert_allclose(model.captions(tensors[0], tensors[1]["ids"], tensors[1]["mask"]).numpy(), captions, rtol=1e-9)
    np.testing.assert_allclose(model.images(tensors[0], tensors[1]["features"]).numpy(), images, rtol=1e-9)
    expected = _loss(captions, images, model.score, 0.3)
    assert expected > 0.1 and float(TASK.loss(model, *tensors)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_contrastive_loss_leaves_out_the_diagonal(count, be, rng):
    errors = rng.random((count, count)).astype(np.float32)
    expected = sum(max(0.0, 0.2 - errors[i, j] + errors[i, i]) + max(0.0, 0.2 - errors[i, j] + errors[j, j])
                   for i in range(count) for j in range(count) if i != j)
    assert float(contrastive_loss(to_tensors(errors, be), 0.2)) == pytest.approx(float(expected), rel=1e-5, abs=1e-7)


def test_clipping_is_of_the_arrays_that_the_authors_have(numpy_backend):
    model, params, batch = _tiny("ln")
    tensors = to_tensors((params, batch), numpy_backend)
    gradients = value_and_grad(lambda p: TASK.loss(model, p, tensors[1]))(tensors[0])[1]
    limit, above = 0.4, 0
    clipped = clip_each_array(limit)(gradients)
    for (name, after), (_, before) in zip(tree.items(clipped), tree.items(gradients), strict=True):
        a, b = after.numpy(), before.numpy()
        for part in (slice(0, 10), slice(10, 15)) if name.startswith("sentence") else (slice(None),):
            norm = np.linalg.norm(b[..., part])
            above += norm > limit
            np.testing.assert_allclose(a[..., part], b[..., part] * min(1, limit / norm), rtol=1e-9)
    assert 3 < above < 17


@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize("correction", ["kiros2015", "standard"])
@pytest.mark.parametrize("variant", TASK.variants)
def test_pytorch_gives_the_same_losses(variant, correction, monkeypatch):
    for module in (task, peer_torch):
        monkeypatch.setattr(module, "CLIP_EACH", 0.5)  # so that the gradients are clipped
    cfg = make_config(TASK, variant, "smoke", {"bias_correction": correction})
    check_peer(TASK, variant, cfg, 6, rtol=1e-3)


# Ranks --------------------------------------------------------------------------------------------------

def _positions(errors, each=CAPTIONS):
    """Sort every row and every column, and look."""
    of_images = [list(np.argsort(row, kind="stable")).index(i // each) for i, row in enumerate(errors)]
    of_captions = []
    for j, column in enumerate(errors.T):
        order = np.argsort(column, kind="stable")
        of_captions.append(next(p for p, i in enumerate(order) if i // each == j))
    return of_images, of_captions


@given(st.integers(1, 11), st.integers(1, 40), st.sampled_from([1, 3, CAPTIONS]), st.integers(0, 10 ** 6))
@settings(max_examples=90, deadline=None, derandomize=True)
def test_ranks_by_brute_force(images, values, each, seed):
    """Few values: many candidates of equal error. Each image has so many captions."""
    errors = np.random.default_rng(seed).integers(0, values, (each * images, images)).astype(np.float32)
    of_images, of_captions = _positions(errors, each)
    ranked = task.ranks(errors)
    assert ranked.of_images.tolist() == of_images and ranked.of_captions.tolist() == of_captions


def test_figures_by_brute_force(rng):
    errors = rng.random((300, 60)).astype(np.float32)
    errors[np.arange(300), np.arange(300) // 5] -= 0.3
    figures = task.figures(errors)
    for name, ranks in zip(("image", "caption"), _positions(errors), strict=True):
        for k in (1, 5, 10):
            assert figures[f"{name}_r{k}"] == pytest.approx(100 * sum(r < k for r in ranks) / len(ranks))
        assert figures[f"{name}_mean_rank"] == pytest.approx(np.mean(ranks) + 1)
        assert figures[f"{name}_median_rank"] == np.floor(np.median(ranks)) + 1
    assert figures["image_sum"] == pytest.approx(sum(figures[f"image_r{k}"] for k in (1, 5, 10)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_errors_that_are_not_finite_have_no_ranks(bad):
    errors = np.zeros((10, 2), np.float32)
    errors[3, 1] = bad
    check_error(DivergedError, lambda: task.ranks(errors), "no longer finite")


@pytest.mark.long
def test_test_figures_are_means_over_folds(monkeypatch, numpy_backend):
    monkeypatch.setattr(data, "_FOLD_IMAGES", 10)
    cfg = make_config(TASK, "none", "smoke")
    split = TASK.data(cfg).evaluation["test"]
    model = TASK.model(cfg)
    rng = np.random.default_rng(0)  # weights that part the points, and float64: errors that are nearly equal have no order
    params = to_tensors(tree.map(lambda a: a + rng.standard_normal(a.shape), model.init(Stream(0, "init"))), numpy_backend)

    def predict(batch):
        wide = {k: a.astype(np.float64) if a.dtype.kind == "f" else a for k, a in batch.items()}
        return TASK.predict(model, params, to_tensors(wide, numpy_backend)).numpy()

    whole = Sentences(split["flat"], split["offsets"])
    each = []
    for first in (0, 10):  # 24 images: four are left over
        captions = [predict(data.pad(whole, np.array([i])))[0] for i in range(5 * first, 5 * first + 50)]
        images = predict({"features": split["features"][first:first + 10]})
        errors = [[np.square(np.maximum(s - m, 0)).sum() for m in images] for s in captions]
        each.append(task.figures(np.array(errors)))
    metrics = TASK.metrics(predict, split)
    assert metrics == pytest.approx({key: (each[0][key] + each[1][key]) / 2 for key in each[0]})


def test_ranking_a_whole_fold_takes_less_than_200_mb(numpy_backend, rng):
    """5,000 captions and 1,000 images: in 64 dimensions all their differences would be 1.3 GB."""
    points = np.abs(rng.standard_normal((1000, 64))).astype(np.float32)
    sentences = Sentences.of([[i] for i in range(5000)])

    def predict(batch):
        if "ids" in batch:
            return points[batch["ids"][0] // 5]
        if "features" in batch:
            return points
        return order_violation(*to_tensors([batch["captions"], batch["images"]], numpy_backend)).numpy()

    tracemalloc.start()
    figures = task.figures(_errors(predict, sentences, points))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert figures["image_r1"] == figures["caption_r1"] == 100.0
    assert peak < 200e6


# Batches ------------------------------------------------------------------------------------------------

def test_an_epoch_visits_every_image_once_and_drops_its_last_batch():
    splits = TASK.data(make_config(TASK, "ln", "smoke"))
    assert splits.steps_per_epoch == 96 // 16 - 1 == 5  # a full batch takes the last image: it is dropped too
    rows = np.concatenate([splits.train(k)["features"] for k in range(5)])
    assert len(np.unique(rows, axis=0)) == 5 * 16
    assert TASK.data(make_config(TASK, "ln", "smoke", {"batch_size": 20})).steps_per_epoch == 4
    assert not np.array_equal(splits.train(0)["features"], splits.train(5)["features"])


def test_a_batch_pairs_images_with_captions_of_their_own(numpy_backend):
    cfg = make_config(TASK, "ln", "smoke")
    part = data.in_vocabulary(data._synthetic_corpus(cfg.image_size), cfg.vocabulary)["train"]
    features = part.features.rows(np.arange(96))
    splits, which = TASK.data(cfg), []
    for step in range(10):
        batch = splits.train(step)
        assert batch["ids"].shape == batch["mask"].shape == (data.padded_length(batch["mask"].sum(0).max()), 16)
        for k in range(16):
            [image] = np.flatnonzero((features == batch["features"][k]).all(axis=1))
            words = int(batch["mask"][:, k].sum()) - 1
            assert batch["mask"][:words + 1, k].all() and not batch["ids"][words:, k].any()
            own = [part.captions[5 * image + c].tolist() for c in range(5)]
            which.append(own.index(batch["ids"][:words, k].tolist()))
    assert set(which) == set(range(5))


def test_batches_have_a_few_lengths():
    assert [data.padded_length(n) for n in (1, 8, 9, 33, 64, 65, 128, 129)] == [8, 8, 12, 48, 64, 128, 128, 192]


def test_settings_that_do_not_fit():
    for settings_, words in (({"batch_size": 96}, ["below 96", "found 96"]), ({"batch_size": 1}, ["found 1"]),
                             ({"vocabulary": 10}, ["10 rows", "--set vocabulary=20"]),
                             ({"image_size": 256}, ["image_size", "found 256"]), ({"image_size": 301}, ["found 301"])):
        check_error(UsageError, lambda s=settings_: TASK.data(make_config(TASK, "ln", "smoke", s)), *words)
