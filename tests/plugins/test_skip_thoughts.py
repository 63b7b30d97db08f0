"""The skip-thoughts task: the kit for tasks, the network against plain NumPy and PyTorch, its loss, one start everywhere."""

import dataclasses

import numpy as np
import pytest
from task_checks import check_peer

from duoln import runtime, tree
from duoln.plugins.skip_thoughts import judging
from duoln.plugins.skip_thoughts.model import SkipThoughts
from duoln.plugins.skip_thoughts.task import SkipThoughtsTask
from duoln.randomness import Stream
from duoln.runtime import to_tensors
from duoln.tasks import make_config
from duoln.testing import check_task
from duoln.testing.references import STEPS
from duoln.training.trainer import Trainer

TASK = SkipThoughtsTask()
TINY = {"judge": "none"}


def test_it_is_a_task(monkeypatch):
    monkeypatch.setattr(judging, "GRID", (1.0,))  # the whole protocol takes a minute
    check_task(TASK, settings={"longest": 6, "hidden": 6, "width": 5, "batch_size": 8}, steps=2)


def test_the_network_of_the_paper():
    sizes = {}
    for variant in TASK.variants:
        cfg = dataclasses.replace(make_config(TASK, variant, "paper"), hidden=24, width=6, words=200)  # a hundredth
        sizes[variant] = sum(a.size for a in tree.leaves(TASK.model(cfg).init(Stream(0, "init"))))
    gru = 6 * 72 + 24 * 72 + 72
    assert sizes == {"none": 200 * 6 + 3 * gru + 24 * 200 + 200, "ln": 200 * 6 + 3 * (gru + 4 * 72) + 24 * 200 + 200}


def test_matrices_start_orthogonal_if_square_else_uniform():
    for width, square in ((5, False), (8, True)):
        params = SkipThoughts(11, width, 8, "layer-theano").init(Stream(0, "init"))
        for name in ("encoder", "previous", "next"):
            for k in range(3):
                gate = slice(8 * k, 8 * k + 8)
                for matrix, orthogonal in ((params[name]["w_h"][:, gate], True), (params[name]["w_x"][:, gate], square)):
                    if orthogonal:
                        np.testing.assert_allclose(matrix @ matrix.T, np.eye(8), atol=1e-5)
                    else:
                        assert 0.05 < np.abs(matrix).max() <= 0.1
            assert not params[name]["bias"].any() and (np.abs(params[name]["gain_x"]) == 1).all()
        assert np.abs(params["embedding"]["table"]).max() <= 0.1 and np.abs(params["output"]["weight"]).max() <= 0.1
        assert not np.array_equal(params["previous"]["w_h"], params["next"]["w_h"])


# Against plain NumPy ------------------------------------------------------------------------------------

def test_update_gates_keep_the_state_as_in_the_code_behind_the_paper():
    cfg = make_config(TASK, "ln", "smoke")
    params = TASK.model(cfg).init(Stream(0, "init"))
    for name in ("encoder", "previous", "next"):
        for side in ("gain_x", "gain_h"):
            assert (params[name][side][:cfg.hidden] == -1).all() and (params[name][side][cfg.hidden:] == 1).all()


def _gru(p, x, h):
    """Protocols 1.2: with u the share that is kept, gates r and u; here z = 1 - u. Biases are inside of the norms."""
    return STEPS["gru", "layer-theano" if "gain_x" in p else "none"](p, x, h)[0]


def _nats(params, batch, floor):
    """The loss of each word, sentence by sentence, word by word."""
    table, size = params["embedding"]["table"], params["encoder"]["w_h"].shape[0]
    nats = np.zeros(batch["targets"].shape)
    for b in range(batch["words"].shape[1]):
        code = np.zeros((1, size))
        for t in range(batch["words"].shape[0]):
            if batch["mask"][t, b]:
                code = _gru(params["encoder"], table[batch["words"][t, b]][None], code)
        for k, name in enumerate(("previous", "next")):
            h, x = code, np.zeros((1, table.shape[1]))
            for t in range(batch["targets"].shape[1]):
                h = _gru(params[name], x, h)
                logits = (h @ params["output"]["weight"] + params["output"]["bias"])[0]
                target = batch["targets"][k, t, b]
                if target >= 0:
                    nats[k, t, b] = -np.log(np.exp(logits[target]) / np.exp(logits).sum() + floor)
                if t < batch["given"].shape[1]:
                    x = table[batch["given"][k, t, b]][None]
    return nats


def _tiny(norm, floor=1e-8):
    """A tiny network in float64, moved off its start, with a batch of three rows, the last one missing."""
    model = SkipThoughts(9, 3, 4, norm, floor=floor)
    rng = np.random.default_rng(0)
    params = tree.map(lambda a: a + 0.5 * rng.standard_normal(a.shape), model.init(Stream(0, "init")))
    words = np.array([[2, 5, 0], [3, 8, 0], [0, 0, 0], [0, 0, 0]], np.int32)
    mask = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 0], [0, 0, 0]], bool)
    targets = np.array([[[4, 7, -1], [0, 2, -1], [-1, 3, -1], [-1, 0, -1]],
                        [[1, 6, -1], [5, 0, -1], [8, -1, -1], [0, -1, -1]]], np.int32)
    return model, params, {"words": words, "mask": mask, "given": np.maximum(targets[:, :-1], 0), "targets": targets}


@pytest.mark.parametrize("floor", [0.0, 1e-8, 1e-2])
@pytest.mark.parametrize("norm", ["none", "layer-theano"])
def test_loss_and_code_are_those_of_plain_numpy(norm, floor, numpy_backend):
    model, params, batch = _tiny(norm, floor)
    expected = _nats(params, batch, floor)
    tensors = to_tensors((params, batch), numpy_backend)
    np.testing.assert_allclose(TASK.predict(model, *tensors).numpy(), expected, rtol=1e-9, atol=1e-12)
    assert float(TASK.loss(model, *tensors)) == pytest.approx(expected.sum(), rel=1e-9)
    code = np.zeros((1, 4))
    for word in (5, 8, 0):
        code = _gru(params["encoder"], params["embedding"]["table"][word][None], code)
    predicted = TASK.predict(model, tensors[0], {key: tensors[1][key] for key in ("words", "mask")}).numpy()
    np.testing.assert_allclose(predicted[1], code[0], rtol=1e-9)
    assert not predicted[2].any()


def test_missing_rows_change_nothing(numpy_backend):
    from duoln import value_and_grad

    model, params, batch = _tiny("layer-theano")
    results = []
    for rows in (slice(None), slice(0, 2)):
        tensors = to_tensors((params, {k: np.ascontiguousarray(a[..., rows]) for k, a in batch.items()}), numpy_backend)
        results.append(value_and_grad(lambda p, b=tensors[1]: TASK.loss(model, p, b))(tensors[0]))
    assert float(results[0][0]) == pytest.approx(float(results[1][0]), rel=1e-12)
    for a, b in zip(*(tree.leaves(g) for _, g in results), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)


# Elsewhere ----------------------------------------------------------------------------------------------

@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize("peer", TASK.peers)
@pytest.mark.parametrize("variant", ["none", "ln"])
def test_the_peer_computes_the_same(variant, peer):
    cfg = make_config(TASK, variant, "smoke", {**TINY, "learning_rate": 1e-3})
    check_peer(TASK, variant, cfg, 4, 2e-5, peer)


def test_a_run_learns_what_a_sentence_tells_of_its_neighbours():
    """Words are guessed better than their frequencies allow, and than by decoders that are given a code of zeros."""
    cfg = make_config(TASK, "ln", "smoke", {**TINY, "epochs": 4})
    splits = TASK.data(cfg)
    trainer = Trainer(TASK, "ln", cfg, splits, runtime.backend("numpy"))
    for _ in range(4 * splits.steps_per_epoch):
        trainer.advance()
    metrics = trainer.evaluate()
    assert metrics["valid_nats"] < 0.6 * metrics["valid_unigram"]
    blind = splits.evaluation["valid"] | {"mask": np.zeros_like(splits.evaluation["valid"]["mask"])}

    def predict(batch):
        return TASK.predict(trainer.model, trainer.state["params"], to_tensors(batch, trainer.backend)).numpy()

    assert TASK.metrics(predict, blind)["nats"] > metrics["valid_nats"] + 0.02
