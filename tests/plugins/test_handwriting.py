"""The handwriting task: the kit for tasks, the network against plain NumPy, its gradient, and one start everywhere."""

import numpy as np
import pytest
from operator_cases import mixture_reference, window_reference
from task_checks import check_peer, check_task_on, lstm_reference

from duoln import ops, tree
from duoln.data.batches import examples
from duoln.errors import UsageError
from duoln.plugins.handwriting import peer_torch, task
from duoln.plugins.handwriting.corpus import ALPHABET, PADDING
from duoln.plugins.handwriting.data import BATCH_AXES
from duoln.plugins.handwriting.model import Synthesis
from duoln.plugins.handwriting.task import Handwriting
from duoln.randomness import Stream
from duoln.runtime import to_tensors
from duoln.tasks import make_config
from duoln.testing import check_error, check_task

TASK = Handwriting()


def test_it_is_a_task():
    check_task(TASK)


@pytest.mark.long
def test_it_is_a_task_on_cuda(gpu):
    """MLX's turn is below: the kit compiles a dozen steps, which takes it a minute and a half."""
    check_task_on(gpu, TASK, steps=2, settings={"length": 6, "lines": 16, "evaluate_lines": 2})


def test_the_network_of_the_paper():
    """About 3.7 M: 3,645,200 weights, the biases of the code, and the norms' gains and biases."""
    sizes = {v: sum(a.size for a in tree.leaves(TASK.model(make_config(TASK, v, "paper")).init(Stream(0, "init"))))
             for v in TASK.variants}
    weights = 1600 * (460 + 860 + 860) + 400 * 30 + 1200 * 121
    assert weights == 3_645_200
    assert sizes == {"none": weights + 3 * 1600 + 30 + 121, "ln": weights + 3 * 1600 + 151 + 3 * 2 * (1600 + 1600 + 400)}


def test_weights_and_biases_start_uniform_and_norms_at_one():
    params = TASK.model(make_config(TASK, "ln", "smoke")).init(Stream(0, "init"))
    for name, a in tree.items(params):
        if "gain" in name:
            assert (a == 1).all()
        elif name.endswith(("bias_x", "bias_h", "bias_c")):
            assert (a == 0).all()
        else:
            assert 0.05 < np.abs(a).max() <= 0.1 and a.std() > 0.02, name


# Against plain NumPy ------------------------------------------------------------------------------------

def _network(params, x, text, gaussians, advance):
    """The network of protocols and Graves 2013, section 5, step by step."""
    (steps, batch, _), hidden = x.shape, params["layer1"]["w_h"].shape[0]
    characters = np.zeros((*text.shape, ALPHABET.classes))
    for b, u in np.argwhere(text != PADDING):
        characters[b, u, text[b, u]] = 1
    states = {k: (np.zeros((batch, hidden)), np.zeros((batch, hidden))) for k in (1, 2, 3)}
    kappa, window, outputs = np.zeros((batch, gaussians)), characters[:, 0], []
    for t in range(steps):
        states[1] = lstm_reference(params["layer1"], np.concatenate((x[t], window), 1), *states[1])
        raw = states[1][0] @ params["window"]["weight"] + params["window"]["bias"]
        window, kappa, _ = window_reference(raw, kappa, characters, advance)
        for k in (2, 3):
            states[k] = lstm_reference(params[f"layer{k}"], np.concatenate((x[t], window, states[k - 1][0]), 1), *states[k])
        hidden_all = np.concatenate([states[k][0] for k in (1, 2, 3)], 1)
        outputs.append(hidden_all @ params["output"]["weight"] + params["output"]["bias"])
    return np.stack(outputs)


def _tiny(norm, seed=0, **settings):
    """A tiny network in float64, moved off its start, with a batch of 4 points and texts of 3 and 2 characters."""
    model = Synthesis(norm, 3, 2, 2, advance=0.5, **settings)
    rng = np.random.default_rng(seed)
    params = tree.map(lambda a: a + 0.3 * rng.standard_normal(a.shape), model.init(Stream(seed, "init")))
    batch = {"x": rng.standard_normal((4, 2, 3)), "target": rng.standard_normal((4, 2, 3)),
             "mask": np.array([[1, 1], [1, 1], [1, 0], [1, 0]], bool),
             "text": np.array([[5, 0, 56], [52, 7, PADDING]], np.int32)}
    batch["target"][..., 2] = rng.random((4, 2)) < 0.5
    return model, params, batch


@pytest.mark.long
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_outputs_and_loss_are_those_of_plain_numpy(norm, numpy_backend):
    model, params, batch = _tiny(norm)
    expected = _network(params, batch["x"], batch["text"], 2, 0.5)
    tensors = to_tensors((params, batch), numpy_backend)
    outputs = model.outputs(tensors[0], tensors[1]["x"], tensors[1]["text"])
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=1e-9, atol=1e-9)
    nats = (mixture_reference(expected, batch["target"]) * batch["mask"]).sum()
    assert float(TASK.loss(model, tensors[0], tensors[1])) == pytest.approx(nats / 2, rel=1e-9)
    split = {k: tensors[1][k].numpy() for k in batch}

    def predict(part):
        return TASK.predict(model, tensors[0], to_tensors(part, numpy_backend)).numpy()

    assert TASK.metrics(predict, split)["nll"] == pytest.approx(nats / 2, rel=1e-9)


def _outputs_step_by_step(model, params, x, text):
    """The network by its steps, as sampling runs it."""
    characters = ops.one_hot(text, size=ALPHABET.classes, dtype=x.dtype)
    walk, outputs = model.begin(params, characters), []
    for point in ops.unstack(x):
        walk, _ = model.step(params, point, characters, walk)
        outputs.append(model.mixture(params, walk))
    return ops.stack(*outputs)


@pytest.mark.parametrize("clip", [0.0, 1e6, 1e-3], ids=["no bound", "not reached", "reached"])
def test_whole_sequences_and_steps_are_one_function(clip, numpy_backend):
    from duoln import value_and_grad

    model, params, batch = _tiny("layer", clip_steps=clip)
    tensors, batch = to_tensors((params, batch), numpy_backend)
    results = [value_and_grad(lambda p, f=f: ops.sum(ops.square(f(p, batch["x"], batch["text"]))))(tensors)
               for f in (model.outputs, lambda *given: _outputs_step_by_step(model, *given))]
    assert float(results[0][0]) == pytest.approx(float(results[1][0]), rel=1e-12)
    for a, b in zip(*(tree.leaves(gradients) for _, gradients in results), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-8, atol=1e-10)


def test_bounds_that_are_reached_change_the_gradient(numpy_backend):
    from duoln import value_and_grad

    norms = []
    for clip in (0.0, 1e-3):
        model, params, batch = _tiny("none", clip_steps=clip)
        tensors = to_tensors((params, batch), numpy_backend)
        gradient = value_and_grad(lambda p, m=model, b=tensors[1]: TASK.loss(m, p, b))(tensors[0])[1]
        norms.append(float(ops.sum(ops.square(gradient["layer1"]["w_h"]))))
    assert norms[1] < norms[0]


def test_the_window_stands_still_on_padding(numpy_backend):
    """The other lines of a batch and the padding do not change the results of a line."""
    model, params, batch = _tiny("layer")
    tensors = to_tensors(params, numpy_backend)
    together = model.outputs(tensors, *to_tensors([batch["x"], batch["text"]], numpy_backend)).numpy()
    alone = model.outputs(tensors, *to_tensors([batch["x"][:, 1:], batch["text"][1:, :2]], numpy_backend)).numpy()
    np.testing.assert_allclose(together[:, 1:], alone, rtol=1e-9)


@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize("variant", ["none", "ln"])
def test_pytorch_gives_the_same_losses(variant, monkeypatch):
    for module in (task, peer_torch):
        monkeypatch.setattr(module, "CLIP_STEPS", 0.5)
        monkeypatch.setattr(module, "CLIP_OUTPUT", 0.2)
    cfg = make_config(TASK, variant, "smoke", {"length": 10})
    check_peer(TASK, variant, cfg, 4, rtol=2e-4)


# Batches ------------------------------------------------------------------------------------------------

@pytest.mark.long
def test_batches_go_through_the_lines_and_wrap_round():
    cfg = make_config(TASK, "ln", "smoke", {"lines": 20})
    splits = TASK.data(cfg)
    assert splits.steps_per_epoch == 2
    whole = np.concatenate([splits.train(k)["text"] for k in range(5)])
    assert np.array_equal(whole[20:], whole[:20])
    shuffled = TASK.data(make_config(TASK, "ln", "smoke", {"lines": 20, "order": "shuffled"}))
    first, second = (np.concatenate([shuffled.train(k)["text"] for k in range(e, e + 2)]) for e in (0, 2))
    assert not np.array_equal(first, second)
    assert {a["x"].shape for a in (splits.train(0), splits.train(4), shuffled.train(3))} == {(24, 8, 3)}


def test_a_batch_holds_points_and_those_after_them():
    batch = TASK.data(make_config(TASK, "ln", "smoke")).evaluation["valid"]
    assert batch["mask"].all() and np.array_equal(batch["x"][1:], batch["target"][:-1])
    part = examples(batch, BATCH_AXES, slice(2, 5))
    assert part["x"].shape == (24, 3, 3) and part["text"].shape == (3, 12)


@pytest.mark.long
def test_settings_that_do_not_fit():
    for settings, words in (({"lines": 0}, ["lines", "found 0"]), ({"lines": 9999}, ["lines", "9999"]),
                            ({"batch_size": 65}, ["batch_size", "65"]), ({"length": 0}, ["length", "found 0"]),
                            ({"evaluate_lines": 0}, ["evaluate_lines", "found 0"])):
        check_error(UsageError, lambda s=settings: TASK.data(make_config(TASK, "ln", "smoke", s)), *words)
