"""Several processes train one model: they share each batch, and make the same updates as one process."""

import numpy as np
import pytest
from groups import together

import duoln
from duoln import nn, ops, optim
from duoln.distributed.ranks import Ranks
from duoln.errors import UsageError
from duoln.tasks import Task
from duoln.training.train_step import make_ranked_step, make_step, start_state


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


def test_means_and_the_state_of_the_first_keep_their_form():
    def work(g, be):
        own = {"a": [duoln.tensor(np.full((2, 3), g.rank + 1, np.float32), be)],
               "step": duoln.tensor(np.array(g.rank + 7, np.int32), be), "empty": duoln.tensor(np.zeros((0, 4), np.float32), be)}
        ranks = Ranks(g, be)
        return ranks.of_first(own), ranks.mean({"a": own["a"]}), ranks.any(g.rank == 1), ranks.any(False)

    for first, mean, some, none in together(2, work):
        assert int(first["step"].numpy()) == 7 and first["step"].dtype == "int32" and first["empty"].shape == (0, 4)
        np.testing.assert_array_equal(first["a"][0].numpy(), np.ones((2, 3), np.float32))
        np.testing.assert_array_equal(mean["a"][0].numpy(), np.full((2, 3), 1.5, np.float32))
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


@pytest.mark.parametrize("size", [2, 3])
def test_ranked_steps_are_the_steps_of_one_process(size, numpy_backend, rng):
    optimizer = optim.Adam(learning_rate=1e-2, clip=optim.clip_global_norm(0.1), donate=True)
    batches = [{"x": rng.standard_normal((12, 3)).astype(np.float32), "y": rng.standard_normal((12, 1)).astype(np.float32)}
               for _ in range(5)]

    def walk(be, step, share):
        rate = duoln.tensor(np.float32(1e-2), be)
        state, losses = start_state(MODEL, optimizer, 0, be), []
        for batch in batches:
            state, figures = step(state, duoln.to_tensors(share(batch), be), rate)
            losses.append((float(figures["loss"]), float(figures["gradient_norm"])))
        return losses, [p.numpy() for p in duoln.tree.leaves(state)]

    def ranked(g, be):
        ranks = Ranks(g, be)
        return walk(be, make_ranked_step(Regression(), MODEL, optimizer, ranks), lambda b: ranks.share(b, {}))

    losses, state = walk(numpy_backend, make_step(Regression(), MODEL, optimizer), lambda b: b)
    for found_losses, found_state in (results := together(size, ranked)):
        np.testing.assert_allclose(found_losses, losses, rtol=1e-5)
        for mine, alone, first in zip(found_state, state, results[0][1], strict=True):
            np.testing.assert_allclose(mine, alone, rtol=2e-3, atol=2e-5)
            np.testing.assert_array_equal(mine, first)


def test_a_loss_that_is_no_mean_over_examples_is_refused(rng):
    batch = {"x": rng.standard_normal((8, 3)).astype(np.float32), "y": rng.standard_normal((8, 1)).astype(np.float32)}

    def check(task):
        return together(2, lambda g, be: Ranks(g, be).check_splits(
            task, MODEL, start_state(MODEL, optim.SGD(0.1), 0, be)["params"], batch))

    assert check(Regression()) == [None, None]
    for error in check(Pairs()):
        assert isinstance(error, UsageError) and "pairs of examples" in str(error) and str(error).startswith("[pairs]")


@pytest.mark.parametrize("text", ["", "a", '{"width": 32, "name": "\u00e4\u20ac"}'])
def test_every_rank_gets_the_text_of_the_first(text):
    assert together(3, lambda g, be: Ranks(g, be).text_of_first(text if g.rank == 0 else "another" * g.rank)) == [text] * 3
