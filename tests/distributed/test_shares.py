"""Several processes train one model: they share each batch, and make the same updates as one process."""

import numpy as np
import pytest
from meetings import together

import duoln
from duoln import nn, ops, optim
from duoln.cli.planned import Plan, plan_of_first
from duoln.data import Batches
from duoln.distributed.ranks import Ranks, check_sharing
from duoln.errors import UsageError
from duoln.runs.settings import Job
from duoln.tasks import Dataset, Splits, Task
from duoln.training.train_step import make_ranked_step, make_step, start_state
from duoln.training.trainer import Trainer


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shares_are_the_batch_in_order_along_each_axis(size, rng):
    batch = {"x": rng.standard_normal((12, 5)), "steps": rng.standard_normal((7, 12, 2)), "table": np.arange(5)}
    parts = together(size, lambda g, be: Ranks(g, be).share(batch, {"steps": 1, "table": None}))
    np.testing.assert_array_equal(np.concatenate([p["x"] for p in parts], 0), batch["x"])
    np.testing.assert_array_equal(np.concatenate([p["steps"] for p in parts], 1), batch["steps"])
    assert all((p["table"] == batch["table"]).all() and p["steps"].flags.c_contiguous for p in parts)


@pytest.mark.parametrize("examples", [1, 5, 0])
def test_examples_that_cannot_be_shared_out_are_an_error(examples):
    [error, _] = together(2, lambda g, be: Ranks(g, be).share({"x": np.zeros((examples, 3))}, {}))
    assert isinstance(error, UsageError) and f"found {examples} examples" in str(error)


def test_sums_and_the_state_of_the_first_keep_their_form():
    def work(g, be):
        own = {"a": [duoln.tensor(np.full((2, 3), g.rank + 1, np.float32), be)],
               "step": duoln.tensor(np.array(g.rank + 7, np.int32), be), "empty": duoln.tensor(np.zeros((0, 4), np.float32), be)}
        ranks = Ranks(g, be)
        return (ranks.broadcast(own), ranks.total({"a": own["a"]}, 1 / 2), ranks.total({"a": own["a"]}, g.rank),
                ranks.any(g.rank == 1), ranks.any(False))

    for first, both, one, some, none in together(2, work):
        assert int(first["step"].numpy()) == 7 and first["step"].dtype == "int32" and first["empty"].shape == (0, 4)
        np.testing.assert_array_equal(first["a"][0].numpy(), np.ones((2, 3), np.float32))
        np.testing.assert_array_equal(both["a"][0].numpy(), np.full((2, 3), 3, np.float32))
        np.testing.assert_array_equal(one["a"][0].numpy(), np.full((2, 3), 2, np.float32))  # nothing of a part of 0
        assert (some, none) == (True, False)


class Regression(Task):
    name = "regression"

    def loss(self, model, params, batch):
        return ops.mean(ops.square(model(params, batch["x"]) - batch["y"]))


class Pairs(Regression):
    name = "pairs"

    def loss(self, model, params, batch):
        y = model(params, batch["x"])
        return ops.mean(ops.square(y - ops.permute_dims(y, axes=(1, 0))))


MODEL = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), ops.tanh, nn.Linear(8, 1))


class Weighed(Regression):
    """A mean over real tokens that says so."""

    name = "weighed"

    def loss(self, model, params, batch):
        nats = ops.square(model(params, batch["x"]) - batch["y"]) * batch["mask"]
        return ops.sum(nats) / ops.sum(batch["mask"])

    def loss_weight(self, batch):
        return batch["mask"].sum()


class Unweighed(Weighed):
    name = "unweighed"
    loss_weight = Task.loss_weight


class Total(Regression):
    name = "total"

    def loss(self, model, params, batch):
        return ops.sum(ops.square(model(params, batch["x"]) - batch["y"]))

    def loss_weight(self, batch):
        return 1


class Clipped(Regression):
    """A gradient that is clipped on its way, where it is that of one example: 12 times smaller in a batch of 12."""

    name = "clipped"

    def loss(self, model, params, batch):
        return ops.mean(ops.square(ops.clip_gradient(model(params, batch["x"]), limit=0.05) - batch["y"]))


TASKS = [Regression(), Weighed(), Total(), Clipped()]


def drawn(rng, count, mask=1.0):
    return {"x": rng.standard_normal((count, 3)).astype(np.float32), "mask": np.full((count, 1), mask, np.float32),
            "y": rng.standard_normal((count, 1)).astype(np.float32)}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("clip", [optim.clip_global_norm(0.1), optim.clip_each_norm(0.05), optim.clip_value(0.02)],
                         ids=["norm", "each", "value"])
def test_ranked_steps_are_the_steps_of_one_process(clip, task, size, numpy_backend, rng):
    """Also where a share has no real token."""
    optimizer = optim.Adam(learning_rate=1e-2, clip=clip, donate=True)
    batches = [drawn(rng, 12) for _ in range(5)]
    batches[1]["mask"][2:6] = batches[2]["mask"][:6] = 0

    def walk(be, step, given):
        rate = duoln.tensor(np.float32(1e-2), be)
        state, losses = start_state(MODEL, optimizer, 0, be), []
        for batch in batches:
            state, figures = step(state, given(batch), rate)
            losses.append((float(figures["loss"]), float(figures["gradient_norm"])))
        return losses, [p.numpy() for p in duoln.tree.leaves(state)]

    def ranked(g, be):
        return walk(be, make_ranked_step(task, MODEL, optimizer, Ranks(g, be)), lambda batch: batch)

    losses, state = walk(numpy_backend, make_step(task, MODEL, optimizer),
                         lambda batch: duoln.to_tensors(batch, numpy_backend))
    for found_losses, found_state in (results := together(size, ranked)):
        np.testing.assert_allclose(found_losses, losses, rtol=1e-5)
        for mine, alone, first in zip(found_state, state, results[0][1], strict=True):
            np.testing.assert_allclose(mine, alone, rtol=2e-3, atol=2e-5)
            np.testing.assert_array_equal(mine, first)


def checked(task, *batches, model=MODEL, size=2):
    def check(g, be):
        with np.errstate(all="ignore"):  # the libraries of ranks do not warn of 0 / 0 in a share without a real token
            check_sharing(Ranks(g, be), task, model, start_state(model, optim.SGD(0.1), 0, be)["params"], batches, be)

    return together(size, check)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_loss_whose_parts_add_up_is_shared(task, size, rng):
    assert checked(task, drawn(rng, 24), drawn(rng, 12), size=size) == [None] * size


def check_refused(errors, name):
    for error in errors:
        assert isinstance(error, UsageError) and str(error).startswith(f"[{name}] 2 ranks cannot share"), error


def test_a_loss_over_pairs_is_refused(rng):
    check_refused(errors := checked(Pairs(), drawn(rng, 8)), "pairs")
    assert "pairs of examples" in str(errors[0])


class Tokens(Task):
    """Class by class of a sentence, (B, T), with a mean over the tokens that are real; `real` says which are."""

    name = "tokens"

    def __init__(self, real):
        self.real = real

    def loss(self, model, params, batch):
        real = self.real(batch)
        nats = ops.softmax_cross_entropy(model(params, batch["x"]), batch["label"])
        return ops.sum(nats * real.astype("float32")) / ops.sum(real.astype("float32"))


REAL = {"mask": lambda b: b["mask"], "floats": lambda b: b["floats"], "ids": lambda b: b["ids"] > 0,
        "lengths": lambda b: ops.expand_dims(b["lengths"], axis=1) > ops.arange(6, backend=b["lengths"].backend),
        "examples": lambda b: ops.expand_dims(b["rows"], axis=1) * (b["ids"] > -1).astype("float32"),
        "padding of 1": lambda b: b["ids"] != 1}


@pytest.mark.parametrize("last", ["drawn", "zeros"])
@pytest.mark.parametrize("real", REAL)
def test_a_mean_over_real_tokens_is_refused_though_the_first_batch_has_no_padding(real, last, rng):
    """However padding is written, and where a last layer of zeros gives every batch the same loss."""
    def batch():
        return {"x": rng.standard_normal((16, 6, 3)).astype(np.float32), "label": rng.integers(0, 4, (16, 6)).astype(np.int32),
                "ids": rng.integers(2, 9, (16, 6)).astype(np.int32), "lengths": np.full(16, 6, np.int32),
                "mask": np.ones((16, 6), bool), "floats": np.ones((16, 6), np.float32), "rows": np.ones(16, np.float32)}

    start = {"weight_init": nn.init.zeros} if last == "zeros" else {}
    model = nn.Sequential(nn.Linear(3, 8), ops.tanh, nn.Linear(8, 4, **start))
    later = batch()
    if real == "padding of 1":  # a number that no other batch could tell
        later["ids"][10:, 2:] = 1
    check_refused(checked(Tokens(REAL[real]), batch(), later, model=model), "tokens")


@pytest.mark.parametrize("start", [1.0, 0.0])
def test_batch_norm_is_refused_whatever_its_gain(start, rng):
    """A gain of 0, as at the end of a residual block, hides the statistics from the first loss and its gradient."""
    class Scaled(nn.BatchNorm):
        def init(self, stream):
            params = super().init(stream)
            return {**params, "gain": params["gain"] * np.float32(start)}

    check_refused(checked(Regression(), drawn(rng, 16), model=nn.Sequential(nn.Linear(3, 8), Scaled(8), nn.Linear(8, 1))),
                  "regression")


@pytest.mark.parametrize("weight", [-1, np.nan, None, "3"])
def test_a_weight_that_is_none_is_named(weight, rng):
    task = Regression()
    task.loss_weight = lambda batch: weight
    [error, _] = checked(task, drawn(rng, 8))
    assert isinstance(error, UsageError) and "loss_weight: expected a number of at least 0, found" in str(error)


@pytest.mark.parametrize("texts", [["", "a", ""], ["", "", ""], ['{"width": 32, "name": "\u00e4\u20ac"}', "one", "another"]])
def test_every_rank_gets_the_texts_of_all(texts):
    assert together(3, lambda g, be: Ranks(g, be).texts(texts[g.rank])) == [texts] * 3


def test_ranks_that_differ_are_told_in_what():
    own = [{"data": "digits", "code": "1"}, {"data": "digits", "code": "1"}, {"data": "made digits", "code": "1", "driver": "5"}]
    errors = together(3, lambda g, be: Ranks(g, be).check_same(own[g.rank]))
    assert [str(error) for error in errors] == [
        "[ranks] expected data digits as on rank 0, found made digits on rank 2; expected driver none as on rank 0, found 5 "
        "on rank 2. All ranks train one model, so all need the same"] * 3
    assert all(isinstance(error, UsageError) for error in errors)
    assert together(2, lambda g, be: Ranks(g, be).check_same(own[0])) == [None, None]


class Labels(Regression):
    """Its last layer starts at zero, so that the first loss is the same whatever the inputs are."""

    name = "labels"

    def __init__(self, x):
        self.x = x

    def data(self, cfg, root=None):
        arrays = {"x": self.x, "y": np.ones((len(self.x), 1), np.float32)}
        return Splits(Dataset("numbers", "original"), Batches(arrays, cfg.batch_size, cfg.seed), len(self.x) // cfg.batch_size, {})

    def model(self, cfg):
        return nn.Linear(3, 1, weight_init=nn.init.zeros)


def test_other_data_of_another_rank_are_refused(rng):
    x = rng.standard_normal((24, 3)).astype(np.float32)

    def meet(g, be):
        task = Labels(x if g.rank == 0 else -x)
        cfg = task.config(batch_size=12)
        Trainer(task, "only", cfg, task.data(cfg), be, ranks=Ranks(g, be)).sync_with_first()

    for error in together(2, meet):
        assert isinstance(error, UsageError) and str(error).startswith("[ranks] expected batches of the training data ("), error
        assert "on rank 1" in str(error)


def test_other_settings_of_another_rank_are_refused(tmp_path):
    task = Labels(np.zeros((24, 3), np.float32))

    def agree(g, be, seeds=(0, 1), asked=(None, None)):
        own = {Job("only"): task.config(seed=seeds[g.rank])} if seeds[g.rank] is not None else {}
        plan = Plan(tmp_path, {}, own, {Job("only"): "float32"} if g.rank == 0 else {})
        return plan_of_first(task, Ranks(g, be), plan, asked[g.rank])[2:]

    for error in together(2, agree):
        assert isinstance(error, UsageError) and "expected only seed 0 as on rank 0, found 1 on rank 1" in str(error)
    for error in together(2, lambda g, be: agree(g, be, (0, 0), (None, "bf16"))):
        assert isinstance(error, UsageError) and 'expected only precision "float32" as on rank 0, found "bf16"' in str(error)
    told = ({Job("only"): task.config(seed=4)}, {Job("only"): "float32"})
    assert together(2, lambda g, be: agree(g, be, (4, None))) == [told, told]  # a rank that goes on knows none
