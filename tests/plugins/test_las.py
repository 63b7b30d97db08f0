"""The LAS task: the kit for tasks, the network against plain NumPy, its gradient, and one start everywhere."""

from typing import ClassVar

import numpy as np
import pytest
from ops.cases import layer_norm_reference
from task_checks import check_peer, lstm_reference

from duoln import runtime, tree
from duoln.errors import ShapeError
from duoln.plugins.las import spoken
from duoln.plugins.las.task import Las
from duoln.randomness import Stream
from duoln.runtime import to_tensors
from duoln.tasks import make_config
from duoln.testing import check_close, check_error, check_task
from duoln.training.trainer import Trainer

TASK = Las()
TINY = {"batch_size": 4, "listener_hidden": 3, "speller_hidden": 4, "attention": 3, "mels": 3, "buckets": 2, "beam": 2,
        "longest": 4}
COUNTS = spoken.COUNTS


@pytest.fixture(autouse=True)
def _few_utterances(monkeypatch):
    monkeypatch.setattr(spoken, "COUNTS", {"train": 32, "dev": 4, "test": 4})


class Two(Las):
    """The variants that differ most: pictures take a second."""

    variants: ClassVar = {name: TASK.variants[name] for name in ("both", "encoder-over-time")}
    references: ClassVar = {}


class Mute(Las):
    """Without pictures."""

    sampling = None


def test_it_is_a_task():
    check_task(Mute())


@pytest.mark.long
def test_it_can_be_sampled():
    check_task(Two(), steps=2, settings=TINY, agreement=False, gradients=False)


def _tiny(variant, **settings):
    return make_config(TASK, variant, "smoke", {**TINY, **settings})


def test_the_network_of_the_recipe():
    """The sizes of nabu: two pyramid layers and one more of 128 a direction, two layers of 128, 123 features, 40 classes."""
    start = {v: TASK.model(make_config(TASK, v, "paper")).init(Stream(0, "init")) for v in TASK.variants}
    shapes = {path: a.shape for path, a in tree.items(start["none"])}
    assert [shapes[f"listener.layer{k}.backward0.w_x"] for k in range(3)] == [(123, 512), (512, 512), (512, 512)]
    assert shapes["speller.layer0.w_x"] == (40 + 256, 512) and shapes["speller.layer1.w_x"] == (128, 512)
    assert shapes["speller.output.weight"] == (128 + 256, 40) and shapes["speller.keys.weight"] == (256, 128)
    assert (start["none"]["speller"]["layer1"]["bias"] == np.repeat([0, 1, 0], [128, 128, 256])).all()
    normed = {v: {p.rpartition(".")[0] for p, _ in tree.items(start[v]) if "gain" in p} for v in start}
    cells = {f"listener.layer{k}.{way}0" for k in range(3) for way in ("forward", "backward")}
    spelling = {"speller.layer0", "speller.layer1"}
    assert normed == {"none": set(), "encoder": cells, "decoder": spelling, "both": cells | spelling,
                      "decoder-swapped-state": spelling, "encoder-over-time": {"listener"}}
    assert start["encoder-over-time"]["listener"]["gain"].shape == (4 * 128,)


def test_how_weights_start():
    """TensorFlow's cells have one matrix, of n_in + n_hidden rows and 4 n_hidden columns, and Glorot's start for it."""
    values = TASK.model(make_config(TASK, "both", "paper")).init(Stream(0, "init"))
    cell = values["listener"]["layer1"]["forward0"]
    reach = (6 / (512 + 5 * 128)) ** 0.5
    assert 0.99 * reach < np.abs(cell["w_x"]).max() <= reach
    gates = np.split(values["speller"]["layer1"]["w_h"], 4, axis=1)
    reach = (6 / (128 + 5 * 128)) ** 0.5
    assert 0.99 * reach < np.abs(gates).max() <= reach and np.std(gates) == pytest.approx(reach / 3 ** 0.5, rel=0.02)
    score = (3 / 128) ** 0.5
    assert 0.9 * score < np.abs(values["speller"]["score"]).max() <= score


def test_the_rate_falls_to_a_tenth_over_the_planned_run():
    rate = TASK.optimizer(make_config(TASK, "none", "paper"), 1000).rate_at
    np.testing.assert_allclose([rate(0), rate(4350), rate(8700)], [1e-3, 1e-3 / 10 ** 0.5, 1e-4])
    assert TASK.optimizer(_tiny("none"), 1000).rate_at(500) == 1e-2


# Against plain NumPy ------------------------------------------------------------------------------------

def _listen(p, x, length, pyramids, masks):
    """One utterance, (frames, width) -> (steps, 2 H): nothing of the padding but what a norm over time sees of it.

    `masks` holds the dropout of every layer for all steps.
    """
    padded = len(x)
    for k in range(len(masks)):
        outs = []
        for way, order in (("forward0", range(length)), ("backward0", reversed(range(length)))):
            cell = p[f"layer{k}"][way]
            h = c = np.zeros(len(cell["w_h"]))
            out = np.zeros((padded, len(h)))
            for t in order:
                h, c = lstm_reference(cell, x[t], h, c)
                out[t] = h
            outs.append(out)
        x = np.concatenate(outs, 1) * masks[k]
        if k < pyramids:
            x = np.array([np.concatenate((x[t], x[t + 1])) for t in range(0, padded, 2)])
            padded, length = padded // 2, (length + 1) // 2
            if "gain" in p:
                x = p["gain"] * (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) + p["bias"]
    return x[:length]


def _spell(p, memory, labels, coin, gumbel, masks, swapped):
    """The logits of every label, one after another."""
    layers = [p[f"layer{k}"] for k in range(len(masks))]
    states = [(np.zeros(len(q["w_h"])),) * 2 for q in layers]
    context, symbol, classes, logits = np.zeros(memory.shape[1]), 0, len(p["output"]["bias"]), []
    for t in range(len(labels)):
        x = np.concatenate((np.arange(classes) == symbol, context))
        for k, q in enumerate(layers):
            h, c = lstm_reference(q, x, *states[k])
            states[k] = (c, h) if swapped else (h, c)
            x = h * masks[k][t]
        scores = [p["score"] @ np.tanh(m @ p["keys"]["weight"] + x @ p["query"]["weight"]) for m in memory]
        weights = np.exp(scores) / np.exp(scores).sum()
        context = weights @ memory
        logits.append(np.concatenate((x, context)) @ p["output"]["weight"] + p["output"]["bias"])
        symbol = int(np.argmax(logits[-1] + gumbel[t])) if coin[t] else labels[t]
    return np.array(logits)


def _reference(cfg, params, batch):
    misses = []
    for b in range(batch["x"].shape[1]):
        count = cfg.pyramids + cfg.layers
        x = batch["x"][:, b]
        if cfg.constant:
            x = np.concatenate((x, np.full((len(x), 1), cfg.constant)), 1)
        memory = _listen(params["listener"], x, int(batch["mask"][:, b].sum()), cfg.pyramids,
                         [batch[f"keep_listener{k}"][:, b] for k in range(count)])
        logits = _spell(params["speller"], memory, batch["labels"][:, b], batch["coin"][:, b], batch["gumbel"][:, b],
                        [batch[f"keep_speller{k}"][:, b] for k in range(cfg.speller_layers)],
                        cfg.speller_state == "swapped")
        length = int((batch["weight"][:, b] > 0).sum())
        wide = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        misses.append(-np.mean([wide[t, batch["labels"][t, b]] for t in range(length)]))
    return np.array(misses)


def _start(variant, **settings):
    """A model with all parameters away from where they start, and a batch with all that a batch can have."""
    cfg = _tiny(variant, dropout=0.3, sampling=0.5, speller_layers=2, pyramids=2, **settings)
    rng = np.random.default_rng(5)
    params = tree.map(lambda a: a.astype(np.float64) + 0.3 * rng.standard_normal(a.shape),
                      TASK.model(cfg).init(Stream(1, "init")))
    batch = {k: a.astype(np.float64) if a.dtype.kind == "f" else a for k, a in TASK.data(cfg).train(1).items()}
    return cfg, params, batch


@pytest.mark.few
@pytest.mark.parametrize("variant", TASK.variants)
def test_the_network_against_plain_numpy(variant, be):
    cfg, params, batch = _start(variant)
    assert batch["coin"].any() and not batch["mask"].all() and not batch["weight"].all()
    expected = _reference(cfg, params, batch)
    for dtype in set(be.dtypes) & {"float64", "float32"}:
        cast = tree.map(lambda a, d=dtype: a.astype(d) if a.dtype.kind == "f" else a, {"p": params, "b": batch})
        t = to_tensors(cast, be)
        misses = TASK.model(cfg).label_losses(t["p"], t["b"]).numpy()
        check_close(misses, expected, 1e-11 if (dtype, be.name) == ("float64", "numpy") else 1e-4, f"{dtype} on {be.name}")


@pytest.mark.parametrize("settings", [{"listener_norm": "upper"}, {"listener_norm": "cell"}, {"listener_norm": "layer", "layers": 0},
                                      {"listener_norm": "layer", "constant": 2.0}], ids=lambda s: "-".join(map(str, s.values())))
def test_settings_of_the_network_that_no_variant_has(settings, numpy_backend):
    cfg, params, batch = _start("none", **settings)
    t = to_tensors({"p": params, "b": batch}, numpy_backend)
    check_close(TASK.model(cfg).label_losses(t["p"], t["b"]).numpy(), _reference(cfg, params, batch), 1e-11, "misses")


@pytest.mark.parametrize(("settings", "seen"), [
    ({"listener_norm": "layer"}, False), ({"listener_norm": "upper"}, True), ({"listener_norm": "cell"}, True),
    ({"listener_norm": "layer", "constant": 2.0}, True)], ids=lambda s: str(s))
def test_what_layer_norm_sees_of_a_frames_size(settings, seen, numpy_backend):
    """Layer norm of W_x x in the first layer does not see a factor of all features, but for its epsilon."""
    cfg, params, batch = _start("none", **settings)
    t = to_tensors({"p": params, "a": batch, "b": {**batch, "x": 100 * batch["x"]}}, numpy_backend)
    heard = [TASK.model(cfg).listener.hear(t["p"]["listener"], t[name])[0].numpy() for name in "ab"]
    assert (np.abs(heard[0] - heard[1]).max() > 0.01) == seen


def test_frames_must_fit_the_pyramid(numpy_backend):
    cfg, params, batch = _start("none")
    t = to_tensors({"p": params, "b": {**batch, "x": batch["x"][:6], "mask": batch["mask"][:6]}}, numpy_backend)
    check_error(ShapeError, lambda: TASK.model(cfg).label_losses(t["p"], t["b"]), "multiple of 4", "6")


# Elsewhere ----------------------------------------------------------------------------------------------

@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize(("variant", "settings"), [
    *((v, {}) for v in TASK.variants), ("none", {"listener_norm": "upper"}), ("decoder", {"listener_norm": "cell", "constant": 2.0})])
def test_the_peer_trains_as_we_do(variant, settings):
    cfg = _tiny(variant, speller_layers=2, sampling=0.3, dropout=0.2, decay_steps=10, learning_rate=1e-3, **settings)
    check_peer(TASK, variant, cfg, 3, 3e-5)


@pytest.mark.long
def test_the_smoke_preset_learns(monkeypatch):
    monkeypatch.setattr(spoken, "COUNTS", COUNTS)
    cfg = make_config(TASK, "both", "smoke")
    trainer = Trainer(TASK, "both", cfg, TASK.data(cfg), runtime.backend("numpy"))
    first = trainer.evaluate()
    while not trainer.finished:
        trainer.advance()
    last = trainer.evaluate()
    assert all(last[key] < 0.6 * first[key] for key in ("train_nll", "dev_nll", "dev_per"))


# Inputs ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("variant", ["none", "both", "encoder-over-time"])
def test_the_inputs_of_every_layer_without_padding_and_dropout(variant, numpy_backend):
    cfg, params, batch = _start(variant)
    t = to_tensors({"p": params, "b": batch}, numpy_backend)
    inputs = TASK.layer_inputs(TASK.model(cfg), t["p"], t["b"])
    assert list(inputs) == ["listener 1, gates", "listener 2", "listener 2, gates", "listener 3", "listener 3, gates", "attention", "softmax"]

    cell, frames = params["listener"]["layer0"]["forward0"], batch["x"][batch["mask"]]
    gates = frames @ cell["w_x"]
    if "gain_x" in cell:
        gates = layer_norm_reference(gates, cell["gain_x"], cell["bias_x"])
    check_close(inputs["listener 1, gates"], gates + cell["bias"], 1e-11, "gates")
    np.testing.assert_array_equal(np.shape(inputs["listener 2"])[1], params["listener"]["layer1"]["forward0"]["w_x"].shape[0])

    values = [_listen(params["listener"], batch["x"][:, b], int(batch["mask"][:, b].sum()), cfg.pyramids, [1.0] * 3)
              for b in range(batch["x"].shape[1])]
    flat = sorted(np.concatenate(values).tolist())
    check_close(np.array(sorted(inputs["attention"].tolist())), np.array(flat), 1e-11, "attention")
    assert inputs["softmax"].shape == ((batch["weight"] > 0).sum(), params["speller"]["output"]["bias"].shape[0])
