"""The attentive reader: the kit for tasks, the network against plain NumPy, its options, metrics and peer."""

from math import sqrt

import numpy as np
import pytest
from task_checks import check_peer

from duoln import nn, tree
from duoln.errors import UsageError
from duoln.plugins.attentive_reader import peer_torch, task as task_module
from duoln.plugins.attentive_reader.model import Reader
from duoln.plugins.attentive_reader.task import FIGURE, AttentiveReader, clip_as_published
from duoln.randomness import Stream
from duoln.runtime import to_tensors
from duoln.tasks import make_config
from duoln.testing import check_close, check_error, check_task
from duoln.testing.references import batch_norm, layer_norm, lstm_states
from duoln.training.trainer import Trainer

TASK = AttentiveReader()
TINY = {"width": 5, "hidden": 4, "batch_size": 6, "evaluate_questions": 12, "table": 500,
        "pad_multiple": 16, "tied": False, "dropout": "paper"}
NORMS = {"none": ("none", False), "bn": ("batch", False), "bn-everywhere": ("batch", True), "ln": ("layer-theano", False)}


def test_it_is_a_task():
    check_task(TASK, steps=2, settings=TINY)


# The network, from the equations ------------------------------------------------------------------------

def _lstm(p, xs, mask, norm):
    """All states (T, B, H): gates input, forget, candidate, output; where the mask is 0 the state stays."""
    p, first = p["cell"], p["first"]
    h, c = np.tile(first, (xs.shape[1], 1)), np.zeros((xs.shape[1], len(first)))
    states = []
    for x, real in zip(xs, mask, strict=True):
        a, b = x @ p["w_x"], h @ p["w_h"]
        norm_c = None
        if norm == "none":
            z = (a + p["bias"]) + b + p["bias"]
        elif norm == "batch":
            z = batch_norm(a + p["bias"], p["gain_x"]) + batch_norm(b, p["gain_h"]) + p["bias"]
            norm_c = lambda c: batch_norm(c, p["gain_c"]) + p["bias_c"]  # noqa: E731
        else:
            z = layer_norm(a + p["bias"], p["gain_x"], p["bias_x"]) + layer_norm(b, p["gain_h"], p["bias_h"]) + p["bias"]
            norm_c = lambda c: layer_norm(c, p["gain_c"], p["bias_c"])  # noqa: E731
        new_h, new_c = lstm_states(z, c, norm_c)
        h, c = np.where(real[:, None], new_h, h), np.where(real[:, None], new_c, c)
        states.append(h)
    return np.array(states)


def _reference(p, batch, norm, everywhere, dropout="paper", keep=0.5):
    """(attention, logits) in float64, one question after another where the norm allows it."""
    def drop(x, name):
        if name in batch:
            return x * batch[name] / (keep if dropout == "inverted" else 1)
        return x * keep if dropout == "paper" else x

    def term(name, x):
        y = x @ p[name]["weight"]
        return (batch_norm(y, p[f"gain_{name}"]) if everywhere else y) + p[name].get("bias", 0)

    words = {s: drop(p["embedding"]["table"][batch[s]], f"keep_{s}") for s in ("passage", "question")}
    d = _lstm(p["passage"], words["passage"], batch["passage_mask"], norm)
    q = _lstm(p["question"], words["question"], batch["question_mask"], norm)[-1]
    of_passage, of_question = term("of_passage", d), term("of_question", q)
    attention, context, mean = np.zeros(d.shape[:2]), np.zeros_like(q), np.zeros_like(q)
    for b in range(len(q)):
        real = batch["passage_mask"][:, b]
        near = (d[real, b] @ p["match"]["weight"]) @ (q[b] @ p["match"]["weight"])
        s = np.tanh(of_passage[real, b] + of_question[b] + near[:, None]) @ p["score"][:, 0]
        attention[real, b] = np.exp(s) / np.exp(s).sum()
        context[b], mean[b] = attention[:, b] @ d[:, b], d[real, b].mean(0)
    g = np.tanh(term("context", context) + term("asked", q) + term("mean", mean))
    return attention, drop(g, "keep_joint") @ p["output"]["weight"] + p["output"]["bias"]


def _case(variant, dropped=False, **options):
    norm, everywhere = NORMS[variant]
    model = Reader(11, 3, 4, norm, everywhere, **options)
    rng = np.random.default_rng(5)
    # All away from their start, so that each of them matters and no two are alike.
    params = tree.map(lambda a: a.astype(np.float64) + 0.4 * rng.standard_normal(a.shape), model.init(Stream(1, "init")))
    batch = {}
    for side, steps in (("passage", 7), ("question", 4)):
        lengths = rng.integers(1, steps, 5)
        batch[f"{side}_mask"] = np.arange(steps)[:, None] < lengths
        batch[side] = np.where(batch[f"{side}_mask"], rng.integers(1, 11, (steps, 5)), 0).astype(np.int32)
        if dropped:
            batch[f"keep_{side}"] = rng.random((steps, 5, 3)) < 0.5
    if dropped:
        batch["keep_joint"] = rng.random((5, 4)) < 0.5
    return model, params, {**batch, "answer": rng.integers(0, 12, 5).astype(np.int32)}


@pytest.mark.parametrize("variant", NORMS)
@pytest.mark.parametrize("dropped", [False, True])
def test_the_network_against_plain_numpy(variant, dropped, be):
    model, params, batch = _case(variant, dropped)
    attention, logits = _reference(params, batch, *NORMS[variant])
    assert logits.shape == (5, 12) and np.allclose(attention.sum(0), 1)
    for dtype in set(be.dtypes) & {"float64", "float32"}:
        t = to_tensors({"p": tree.map(lambda a, d=dtype: a.astype(d), params), "b": batch}, be)
        close = 1e-10 if dtype == "float64" and be.name == "numpy" else 5e-5
        check_close(model(t["p"], t["b"]).numpy(), logits, close, f"logits on {be.name} in {dtype}")


@pytest.mark.parametrize("dropout", ["paper", "inverted", "none"])
def test_dropout_in_training_and_in_use(dropout, numpy_backend):
    for dropped in {False, dropout != "none"}:
        model, params, batch = _case("ln", dropped, dropout=dropout, keep=0.7)
        t = to_tensors({"p": params, "b": batch}, numpy_backend)
        _, logits = _reference(params, batch, *NORMS["ln"], dropout, 0.7)
        check_close(model(t["p"], t["b"]).numpy(), logits, 1e-10, dropout)


def test_scores_tied_to_the_words(numpy_backend):
    norm, everywhere = NORMS["ln"]
    model = Reader(11, 4, 4, norm, everywhere, tied=True)
    params = model.init(Stream(1, "init"))
    assert "output" not in params and params["bias"].shape == (11,)
    _, own, batch = _case("ln")
    params = {**own, "embedding": {"table": np.random.default_rng(3).standard_normal((11, 4))}, "bias": np.arange(11.0),
              "passage": _wider(own["passage"]), "question": _wider(own["question"])}
    t = to_tensors({"p": params, "b": {**batch, "answer": batch["answer"] % 11}}, numpy_backend)
    output = {"weight": params["embedding"]["table"].T, "bias": params["bias"]}
    _, logits = _reference({**params, "output": output}, batch, norm, everywhere)
    check_close(model(t["p"], t["b"]).numpy(), logits, 1e-10, "tied")
    check_error(UsageError, lambda: Reader(11, 3, 4, norm, tied=True), "tied", "3 and 4")


def _wider(encoder):
    """The same encoder for words one number wider."""
    return {**encoder, "cell": {**encoder["cell"], "w_x": np.vstack((encoder["cell"]["w_x"], np.ones((1, 16))))}}


def test_both_likelihoods(numpy_backend):
    for likelihood in ("paper", "exact"):
        model, params, batch = _case("ln", likelihood=likelihood)
        params["output"]["weight"] *= 60  # some answers then have a probability below 1e-8
        t = to_tensors({"p": params, "b": batch}, numpy_backend)
        _, logits = _reference(params, batch, *NORMS["ln"])
        p = np.exp(logits - logits.max(1, keepdims=True))
        p = (p / p.sum(1, keepdims=True))[np.arange(5), batch["answer"]]
        assert p.min() < 1e-9 and p.max() > 0.1
        expected = -np.log(p + 1e-8) if likelihood == "paper" else -np.log(p)
        check_close(model.loss(t["p"], t["b"]).numpy(), expected, 1e-8, likelihood)


# Traps of the protocol ----------------------------------------------------------------------------------

def _init(variant="ln", **settings):
    cfg = make_config(TASK, variant, "paper", {"table": 60, **settings})
    return tree.map(np.asarray, TASK.model(cfg).init(Stream(0, "init")))


def test_one_seed_for_every_matrix():
    p = _init()
    gate = p["passage"]["cell"]["w_h"][:, :240]
    for w in (p[s]["cell"][k][:, g * 240:(g + 1) * 240] for s in ("passage", "question") for k in ("w_x", "w_h") for g in range(4)):
        np.testing.assert_array_equal(w, gate)
    for name in ("match", "of_passage"):
        np.testing.assert_array_equal(p[name]["weight"], gate)
    np.testing.assert_allclose(gate @ gate.T, 0.0025 * np.eye(240), atol=1e-6)
    for name in ("of_question", "asked", "mean"):
        np.testing.assert_array_equal(p[name]["weight"], p["context"]["weight"])
    for weight, limit in ((p["context"]["weight"], sqrt(6 / 481)), (p["output"]["weight"], sqrt(6 / (240 + 61 + 1))),
                          (p["embedding"]["table"], sqrt(6 / (60 + 240 + 1))), (p["score"], 1 / sqrt(240))):
        assert 0.97 * limit < np.abs(weight).max() <= limit
    assert not p["passage"]["first"].any() and not p["output"]["bias"].any()
    assert not np.array_equal(p["context"]["weight"], tree.map(np.asarray, _init(seed=1))["of_passage"]["weight"])
    q = _init(start="glorot")
    gates = [q[s]["cell"]["w_h"][:, g * 240:(g + 1) * 240] for s in ("passage", "question") for g in range(4)]
    assert all(not np.array_equal(a, b) for i, a in enumerate(gates) for b in gates[:i])


def test_gains():
    for variant, gain in (("ln", 1.0), ("ln-gain-0.1", 0.1), ("bn", 0.1), ("bn-everywhere", 0.1)):
        p = _init(variant)
        gains = {path: a for path, a in tree.items(p) if "gain" in path}
        assert all((a == np.float32(gain)).all() for a in gains.values())
        assert len(gains) == {"bn-everywhere": 11}.get(variant, 6)
    assert not [path for path, _ in tree.items(_init("none")) if "gain" in path]


def test_the_bound_that_hardly_ever_binds(numpy_backend):
    clip = clip_as_published(10.0)
    for norm, after in ((50.0, 50.0), (99.9, 99.9), (400.0, 200.0), (10_000.0, 1000.0)):
        g = to_tensors({"a": np.array([0.6 * norm]), "b": np.array([0.8 * norm])}, numpy_backend)
        clipped = clip(g)
        assert np.hypot(*(float(clipped[k].numpy()[0]) for k in "ab")) == pytest.approx(after, rel=1e-9)


def test_the_protocol_of_the_paper():
    """`test_settings.py` is about its settings."""
    cfg = make_config(TASK, "ln", "paper")
    adam = TASK.optimizer(cfg, 1000)
    assert (adam.beta1, adam.beta2, adam.eps, adam.bias_correction) == (0.9, 0.999, 1e-8, "standard")
    cells = [m for _, m in TASK.model(cfg).modules() if isinstance(m, nn.LSTMCell)]
    assert [(c.norm, c.n_in, c.n_hidden, c.learned_state) for c in cells] == [("layer-theano", 240, 240, False)] * 2


# Metrics ------------------------------------------------------------------------------------------------

def test_metrics_against_plain_python():
    splits = TASK.data(make_config(TASK, "ln", "smoke", {"batch_size": 7, "last_batch": "kept"}))
    split = splits.evaluation["valid"]
    rng = np.random.default_rng(2)
    given, answers = [], [int(a) for a in split["answer"]]

    def predict(batch):
        logits = rng.standard_normal((len(batch["answer"]), 601)).astype(np.float32)
        for row, answer in zip(logits, batch["answer"], strict=True):
            row[answer] += 4 * (rng.random() < 0.5)
        given.extend(logits.astype(float).tolist())
        return logits

    metrics = TASK.metrics(predict, split)
    wrong = [max(range(601), key=row.__getitem__) != a for row, a in zip(given, answers, strict=True)]
    nats = [np.logaddexp.reduce(row) - row[a] for row, a in zip(given, answers, strict=True)]
    assert 0.2 < metrics["error"] < 0.8 and metrics["error"] == pytest.approx(sum(wrong) / 64)
    assert metrics["nll"] == pytest.approx(sum(nats) / 64)
    assert metrics["most_frequent_error"] == np.mean(split["most_frequent"] != split["answer"])


def test_an_answer_that_the_table_does_not_have_is_never_found():
    """Neither by the model nor by the rule: one unknown word is no other one."""
    split = dict(TASK.data(make_config(TASK, "ln", "smoke", {"last_batch": "kept"})).evaluation["valid"])
    split["answer"] = np.full_like(split["answer"], 2)
    always = np.zeros((1, 601), np.float32)
    always[:, 2] = 9
    split["most_frequent"] = split["answer"].copy()
    metrics = TASK.metrics(lambda batch: np.repeat(always, len(batch["answer"]), 0), split)
    assert metrics["error"] == metrics["most_frequent_error"] == 1.0


@pytest.mark.long
def test_it_learns_to_answer(numpy_backend):
    """Far better on made questions than the most frequent entity, or than any word that does not look at the passage."""
    cfg = make_config(TASK, "ln", "smoke", {"epochs": 6})
    trainer = Trainer(TASK, "ln", cfg, TASK.data(cfg), numpy_backend)
    while trainer.update < trainer.last_update:
        trainer.advance()
    metrics = trainer.evaluate()
    assert metrics["valid_error"] < metrics["valid_most_frequent_error"] - 0.4


# The paper's curves -------------------------------------------------------------------------------------

def test_the_curves_of_figure_2():
    curves = {c.variant: list(c.points) for c in TASK.reference_curves()}
    assert list(curves) == ["none", "bn", "bn-everywhere"] and FIGURE.is_file()
    least = {variant: min(points, key=lambda p: p[1]) for variant, points in curves.items()}
    assert least == {"none": (759_000, 0.5033), "bn": (228_000, 0.4951), "bn-everywhere": (126_000, 0.5)}
    assert all(c.metric in {column.key for column in TASK.columns} for c in TASK.reference_curves())
    assert all(points == sorted(points) for points in curves.values())


# Elsewhere ----------------------------------------------------------------------------------------------

@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize(("variant", "options"), [
    ("none", {"dropout": "none"}), ("ln", {}), ("ln", {"dropout": "inverted", "likelihood": "exact", "clip": "norm"}),
    ("ln", {"tied": True, "width": 4})])
def test_the_peer_trains_as_we_do(variant, options, monkeypatch):
    if "dropout" in options:
        for module in (task_module, peer_torch):
            monkeypatch.setattr(module, "LIMIT", 0.05)  # so that the gradients are clipped
    cfg = make_config(TASK, variant, "smoke", {**TINY, **options})
    check_peer(TASK, variant, cfg, 4, rtol=1e-4)


def test_unknown_settings():
    check_error(UsageError, lambda: Reader(9, 3, 4, "none", keep=0.0), "keep", "0.0")
