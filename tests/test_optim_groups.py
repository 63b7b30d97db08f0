"""Optimizers for parts of a model, beside the same optimizers on each part."""

import dataclasses

import numpy as np
import pytest
from small_runs import Line, fit_into

import duoln
from duoln import nn, optim, tree
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.tasks import make_config
from duoln.tasks.boundary import named
from duoln.testing import check_error
from duoln.training.trainer import Trainer

MODEL = nn.Sequential(body=nn.Linear(3, 4), head=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), header=nn.Linear(2, 2))
HEAD, REST = optim.Adam(optim.cosine(1e-2, 5), donate=True), optim.SGD(1e-1, momentum=0.9, clip=optim.clip_value(0.01))


def _start(be, rng):
    params = duoln.init(MODEL, 0, be)
    return params, tree.map(lambda p: duoln.tensor(rng.standard_normal(p.shape).astype(np.float32), be), params)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_each_group_is_updated_by_its_own(be, rng, compiled):
    clip = optim.clip_global_norm(0.5)
    groups = optim.Groups({"head": HEAD, "body.bias": optim.SGD(1.0)}, rest=REST, clip=clip)
    params, gradients = _start(be, rng)
    own = [(HEAD, "head", params["head"]), (optim.SGD(1.0), "bias", params["body"]["bias"]),
           (REST, "rest", {"body": {"weight": params["body"]["weight"]}, "header": params["header"]})]
    expected = {name: tree.map(lambda p: p * 1.0, part) for _, name, part in own}
    slots_of = {name: optimizer.init(expected[name]) for optimizer, name, _ in own}
    slots, update = groups.init(params), duoln.compile(groups.update_with_norm) if compiled else groups.update_with_norm
    for _ in range(5):
        params, slots, norm = update(params, gradients, slots)
        clipped = clip(gradients)
        parts = {"head": clipped["head"], "bias": clipped["body"]["bias"],
                 "rest": {"body": {"weight": clipped["body"]["weight"]}, "header": clipped["header"]}}
        for optimizer, name, _ in own:
            expected[name], slots_of[name] = optimizer.update(expected[name], parts[name], slots_of[name])
    assert norm.item() == pytest.approx(optim.global_norm(gradients).item())
    for ours, theirs in ((params["head"], expected["head"]), (params["body"]["bias"], expected["bias"]),
                         (params["header"], expected["rest"]["header"]), (params["body"]["weight"], expected["rest"]["body"]["weight"])):
        for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert [path for path, _ in tree.items(params)] == [path for path, _ in tree.items(MODEL.init(0))]


def test_without_a_rest_it_stays(be, rng):
    params, gradients = _start(be, rng)
    groups = optim.Groups({"head": optim.SGD(0.1)}, rest=None)
    new, slots = groups.update(params, gradients, groups.init(params))
    assert new["body"]["weight"] is params["body"]["weight"] and new["header"]["bias"] is params["header"]["bias"]
    assert not np.array_equal(new["head"]["0"]["weight"].numpy(), params["head"]["0"]["weight"].numpy()) and slots.keys() == {"head"}


def test_rates_are_those_of_the_groups(be, rng):
    params, gradients = _start(be, rng)
    groups = optim.Groups({"head": dataclasses.replace(HEAD, donate=False)}, rest=optim.SGD(0.1))
    assert groups.rate_at(5) == {"head": 0.0, "rest": 0.1} and not groups.donate
    new, _ = groups.update(params, gradients, groups.init(params), {"head": 0.0, "rest": duoln.tensor(0.0, be)})
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in tree.zipped(new, params))


def test_a_task_may_have_groups(numpy_backend, tmp_path):
    task = Line()
    task.optimizer = lambda cfg, updates: optim.Groups({"0.bias": optim.SGD(0.05)}, rest=optim.SGD(cfg.learning_rate))
    task = named(task, "here")
    cfg = make_config(task, "plain")
    trainer = Trainer(task, "plain", cfg, task.data(cfg), numpy_backend)
    start = tree.map(lambda p: p.numpy(), trainer.state["params"])
    result = fit_into(trainer, tmp_path, numpy_backend)
    assert result["updates"] == trainer.update > 1 and trainer.state["slots"].keys() == {"0.bias", "rest"}
    assert all(not np.array_equal(a.numpy(), b) for a, b in tree.zipped(trainer.state["params"], start))


def test_slots_are_saved_and_loaded(be, rng, tmp_path):
    params, gradients = _start(be, rng)
    groups = optim.Groups({"head": optim.Adam(0.1)}, rest=REST)
    _, slots = groups.update(params, gradients, groups.init(params))
    duoln.save_state(tmp_path, 1, slots=slots)
    again = duoln.load_state(tmp_path, be)["slots"]
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in tree.zipped(slots, again))


def test_wrong_groups_are_told(numpy_backend, rng):
    params, gradients = _start(numpy_backend, rng)
    check_error(UsageError, lambda: optim.Groups({}, rest=REST), "[Groups] groups")
    check_error(DtypeError, lambda: optim.Groups({"head": 0.1}, rest=REST), "'head'", "0.1")
    check_error(UsageError, lambda: optim.Groups({"rest": HEAD}, rest=REST), "'rest'")
    check_error(UsageError, lambda: optim.Groups({"head": HEAD, "head.0": HEAD}, rest=REST), "'head.0' in 'head'")
    check_error(ShapeError, lambda: optim.Groups({"tail": HEAD}, rest=REST).init(params), "'tail'", "body.weight")
    groups = optim.Groups({"head": HEAD}, rest=REST)
    check_error(ShapeError, lambda: groups.update(params, gradients, {"head": {}}), "head, rest")
    check_error(ShapeError, lambda: groups.update(params, gradients["head"], groups.init(params)), "keys")
    check_error(ShapeError, lambda: groups.update(params, gradients, groups.init(params), 0.1), "rates", "0.1")
    check_error(UsageError, lambda: groups.update(params, gradients, groups.init(params), {"haed": 0.1}), "head, rest", "haed")
