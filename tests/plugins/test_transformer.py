"""The Transformer on characters: the kit for tasks, the network against plain NumPy and PyTorch, its rate and metrics."""

from typing import ClassVar

import numpy as np
import pytest
from ops.cases import layer_norm_reference
from task_checks import check_peer, check_task_on

from duoln import runtime, tree
from duoln.plugins.transformer.corpus import ALPHABET
from duoln.plugins.transformer.model import CharacterTransformer, inverse_root
from duoln.plugins.transformer.task import TransformerTask
from duoln.randomness import Stream
from duoln.runtime import to_tensors
from duoln.tasks import make_config
from duoln.testing import check_task
from duoln.training.trainer import Trainer

TASK = TransformerTask()
TINY = {"blocks": 1, "width": 8, "hidden": 12, "length": 5, "batch_size": 3, "windows": 4}


def test_it_is_a_task():
    check_task(TASK, settings=TINY, steps=2)


class Few(TransformerTask):
    """Both norms, and both beginnings of the rate: the kit compiles several steps of each variant."""

    variants: ClassVar = {name: TASK.variants[name] for name in ("post", "rms-warm")}
    references: ClassVar = {}


@pytest.mark.long
def test_it_is_a_task_on_cuda(gpu):
    check_task_on(gpu, Few(), steps=2, settings=TINY)


@pytest.mark.long
def test_sizes_of_the_source():
    block = 512 * 1536 + 1536 + 512 * 512 + 512 + 2 * 512 * 1024 + 1024 + 512
    rest = ALPHABET.classes * 512 + 256 * 512 + 512 * ALPHABET.classes + ALPHABET.classes
    norms = {"none": 0, "post": 6 * 4 * 512, "pre": 6 * 4 * 512 + 2 * 512, "rms": 6 * 2 * 512 + 512}
    for variant, size in norms.items():
        params = TASK.model(make_config(TASK, variant, "xiong2020")).init(0)
        assert sum(a.size for a in tree.leaves(params)) == 6 * block + rest + size


def test_matrices_start_as_glorot_and_vectors_with_variance_one():
    params = TASK.model(make_config(TASK, "pre", "xiong2020")).init(0)
    for name, a in tree.items(params):
        if name.endswith("table"):
            assert (a * np.sqrt(512)).std() == pytest.approx(1, rel=0.02)
        elif name.endswith("weight"):
            bound = np.sqrt(6 / sum(a.shape))
            assert 0.99 * bound < np.abs(a).max() <= bound
        else:
            assert (a == (1 if name.endswith("gain") else 0)).all()


# Against plain NumPy ------------------------------------------------------------------------------------

def _norm(p, x):
    if "bias" in p:
        return layer_norm_reference(x, p["gain"], p["bias"])
    return p["gain"] * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def _linear(p, x):
    return x @ p["weight"] + p["bias"]


def _attend(p, x, heads):
    """One window, query by query: each sees itself and those before it."""
    steps, width = x.shape
    size = width // heads
    query, key, value = np.split(_linear(p["projection"], x), 3, axis=-1)
    out = np.zeros_like(x)
    for head in (slice(k * size, (k + 1) * size) for k in range(heads)):
        for t in range(steps):
            scores = query[t, head] @ key[:t + 1, head].T / np.sqrt(size)
            powers = np.exp(scores - scores.max())
            out[t, head] = powers / powers.sum() @ value[:t + 1, head]
    return _linear(p["out"], out)


def _nats(params, x, y, heads, norm):
    """The nats of each character, window by window, by the equations of table 1 of Xiong et al. 2020."""
    nats = np.zeros(x.shape)
    for b, window in enumerate(x):
        places = np.arange(len(window))
        h = np.sqrt(params["characters"]["table"].shape[1]) * (
            params["characters"]["table"][window] + params["places"]["table"][places])
        for p in params["blocks"].values():
            if norm == "post":
                h = _norm(p["attention_norm"], h + _attend(p["attention"], h, heads))
                h = _norm(p["hidden_norm"], h + _linear(p["out"], np.maximum(_linear(p["hidden"], h), 0)))
            else:
                h = h + _attend(p["attention"], _norm(p["attention_norm"], h) if norm == "pre" else h, heads)
                inside = _norm(p["hidden_norm"], h) if norm == "pre" else h
                h = h + _linear(p["out"], np.maximum(_linear(p["hidden"], inside), 0))
        logits = _linear(params["output"], _norm(params["last_norm"], h) if norm == "pre" else h)
        nats[b] = np.log(np.exp(logits).sum(-1)) - logits[places, y[b]]
    return nats


NORMS = [("pre", "layer"), ("pre", "rms"), ("post", "layer"), ("none", "layer")]


def _tiny(norm, kind, length=5):
    """A tiny network in float64, moved off its start, with a batch of two windows."""
    model = CharacterTransformer(7, 5, 2, 4, 2, 6, norm, kind)
    rng = np.random.default_rng(0)
    params = tree.map(lambda a: a + 0.3 * rng.standard_normal(a.shape), model.init(Stream(0, "init")))
    windows = rng.integers(0, 7, (2, length + 1)).astype(np.int32)
    return model, params, {"x": windows[:, :-1].copy(), "y": windows[:, 1:].copy()}


@pytest.mark.long
@pytest.mark.parametrize("length", [1, 3, 5])
@pytest.mark.parametrize(("norm", "kind"), NORMS)
def test_the_network_is_that_of_plain_numpy(norm, kind, length, numpy_backend):
    model, params, batch = _tiny(norm, kind, length)
    expected = _nats(params, batch["x"], batch["y"], 2, norm)
    tensors = to_tensors((params, batch), numpy_backend)
    np.testing.assert_allclose(TASK.predict(model, *tensors).numpy(), expected, rtol=1e-9)
    assert float(TASK.loss(model, *tensors)) == pytest.approx(expected.mean(), rel=1e-9)
    logits = model.logits(tensors[0], tensors[1]["x"]).numpy()
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(-np.log(np.take_along_axis(shares, batch["y"][..., None], -1)[..., 0]), expected, rtol=1e-9)


def test_no_character_sees_those_after_it(numpy_backend):
    model, params, batch = _tiny("pre", "layer")
    changed = batch["x"].copy()
    changed[:, 3:] = (changed[:, 3:] + 1) % 7
    first, second = (model.logits(*to_tensors((params, x), numpy_backend)).numpy() for x in (batch["x"], changed))
    np.testing.assert_array_equal(first[:, :3], second[:, :3])
    assert (np.abs(first[:, 3:] - second[:, 3:]).max(axis=(0, 2)) > 1e-3).all()


# The rate, the metrics ----------------------------------------------------------------------------------

def test_the_rate_rises_along_a_line_and_falls_with_the_inverse_root():
    warm, at_once, ever = inverse_root(2.0, 4, True), inverse_root(2.0, 4, False), inverse_root(2.0, 0, True)
    assert [warm(k) for k in (0, 1, 2, 3)] == [0.5, 1.0, 1.5, 2.0]
    assert [at_once(k) for k in (0, 1, 2, 3)] == [2.0] * 4 == [ever(k) for k in (0, 3, 15, 399)]
    assert [rate(k) for rate in (warm, at_once) for k in (15, 99)] == [1.0, 0.4] * 2


def test_metrics_are_computed_in_float64():
    rng = np.random.default_rng(0)
    split = {"x": rng.integers(0, 3, (67, 5)).astype(np.int32), "y": rng.integers(0, 3, (67, 5)).astype(np.int32),
             "counts": np.array([5, 2, 0, *[0] * (ALPHABET.classes - 3)], np.int32)}
    metrics = TASK.metrics(lambda batch: (batch["y"] + 1).astype(np.float32), split)
    assert metrics["nats"] == pytest.approx((split["y"] + 1).mean(), rel=1e-12)
    assert metrics["bits"] == pytest.approx(metrics["nats"] / np.log(2), rel=1e-12)
    shares = np.array([6, 3, 1]) / (7 + ALPHABET.classes)
    assert metrics["unigram"] == pytest.approx(-np.log2(shares)[split["y"]].mean(), rel=1e-12)


# Elsewhere ----------------------------------------------------------------------------------------------

@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize(("variant", "peer"), [
    *((variant, "torch") for variant in ("pre", "post", "rms", "none")), ("post-warm", "torch-fused")])
def test_the_peer_trains_as_we_do(variant, peer):
    """Twelve updates: ten of the warm-up, and two of the inverse root."""
    check_peer(TASK, variant, make_config(TASK, variant, "smoke", {"learning_rate": 1e-3}), 12, 1e-4, peer)


def test_a_run_learns_more_than_the_shares_of_characters():
    cfg = make_config(TASK, "pre", "smoke", {"updates": 60})
    trainer = Trainer(TASK, "pre", cfg, TASK.data(cfg), runtime.backend("numpy"))
    for _ in range(60):
        trainer.advance()
    metrics = trainer.evaluate()
    assert metrics["valid_bits"] < 0.8 * metrics["valid_unigram"]
