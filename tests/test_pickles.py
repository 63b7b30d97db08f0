"""What a user holds goes through pickle and copy: functions and operators are the same object again, the rest is equal."""

import copy
import inspect
import pickle

import numpy as np
import pytest

import duoln
from duoln import data, errors, extend, nn, ops, optim, testing, tree
from duoln.core import Rule, op
from duoln.core.op import Op
from duoln.nn import init
from duoln.randomness import Stream
from duoln.tasks.registry import Registry, find_task
from duoln.tasks.settings import make_config

WAYS = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "copy": copy.copy, "deepcopy": copy.deepcopy}
MODULES = (duoln, nn, ops, optim, data, extend, testing, init, tree, errors)


def _public():
    for module in MODULES:
        for name in getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]:
            if name not in vars(module).get("_MODULES", ()) and not inspect.ismodule(thing := getattr(module, name)):
                yield f"{module.__name__}.{name}", thing


@pytest.mark.parametrize("way", WAYS)
def test_every_public_name(way):
    things = dict(_public())
    assert len([thing for thing in things.values() if isinstance(thing, Op)]) > 80
    for name, thing in things.items():
        again = WAYS[way](thing)
        if isinstance(thing, type | Op) or inspect.isroutine(thing):
            assert again is thing, name
        else:
            assert repr(again) == repr(thing), name


class Model(nn.Module):
    def __init__(self):
        self.layers = nn.Sequential(nn.Linear(3, 4, weight_init=init.orthogonal), ops.relu, nn.LayerNorm(4), nn.Flatten())
        self.read = nn.LSTM(4, 2, norm="layer")

    def __call__(self, params, x):
        return self.layers(params["layers"], x)


@pytest.mark.parametrize("way", WAYS)
def test_a_model_computes_the_same(way, be):
    model = Model()
    again = WAYS[way](model)
    params, x = duoln.to_tensors(again.init(3), be), duoln.tensor(np.ones((2, 3), np.float32), be)
    np.testing.assert_array_equal(again(params, x).numpy(), model(params, x).numpy())
    assert repr(again) == repr(model) and again.layers.layers["1"] is ops.relu


def halved(norm):
    return norm * 0.5


def falling(step):
    return 1.0 / (1 + step)


CLIPS = {"none": None, "global": optim.clip_global_norm(1.5), "each": optim.clip_each_norm(0.5), "value": optim.clip_value(0.25),
         "scaled": optim.scale_by_norm(halved)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("clip", CLIPS)
def test_an_optimizer_is_equal_and_makes_the_same_update(way, clip, be):
    for optimizer in (optim.SGD(falling, clip=CLIPS[clip], momentum=0.5), optim.RMSProp(0.1, clip=CLIPS[clip]), optim.Adam(falling, clip=CLIPS[clip])):
        again = WAYS[way](optimizer)
        assert again == optimizer and again.rate_at(3) == optimizer.rate_at(3)
        gradients = {"a": duoln.tensor([3.0, -4.0], be), "b": duoln.tensor([[0.1]], be)}
        first, second = (o.update(gradients, gradients, o.init(gradients), 0.1)[0] for o in (again, optimizer))
        assert tree.map(lambda t: t.tolist(), first) == tree.map(lambda t: t.tolist(), second)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_stream_goes_on_where_it_was_and_alone(way):
    stream = Stream(3, "noise", epoch=1, step=2)
    stream.uniform((5,))
    again = WAYS[way](stream)
    expected = stream.gaussian((7,))
    np.testing.assert_array_equal(again.gaussian((7,)), expected)
    np.testing.assert_array_equal(again.child("a").uniform((3,)), stream.child("a").uniform((3,)))


@pytest.mark.parametrize("way", WAYS)
def test_every_task_its_settings_and_its_optimizer(way):
    tasks = Registry().tasks
    assert len(tasks) >= 9
    for name, (task, *_) in tasks.items():
        again = WAYS[way](find_task(name))
        for variant in task.variants:
            cfg = make_config(again, variant, "smoke")
            assert WAYS[way](cfg) == cfg
        model, optimizer = WAYS[way](again.model(cfg)), WAYS[way](again.optimizer(cfg, 1000))
        assert repr(model) == repr(task.model(cfg)) and optimizer.rate_at(7) == task.optimizer(cfg, 1000).rate_at(7), name
        assert type(WAYS[way](task)) is type(task)


def test_an_operator_of_a_plug_in_is_itself_and_one_of_a_function_has_no_name():
    from duoln.plugins.order_embeddings.ops import order_violation

    @op
    def local(x):
        """Has no name that a module could look up."""
        return local.apply(x)

    local.add(Rule("composed", lambda be, x: (x, None)))
    for way in WAYS.values():
        assert way(order_violation) is order_violation
    assert copy.deepcopy(local) is local
    with pytest.raises(pickle.PicklingError, match="local"):
        pickle.dumps(local)


def _classes(base):
    return {kind for kind in {base}.union(*map(_classes, base.__subclasses__())) if kind.__module__.startswith("duoln.")}


class WithNames(errors.TaskError):
    """An error of a plug-in: arguments by name, and a text of its attributes."""

    def __init__(self, *, epoch, loss):
        self.epoch, self.loss = epoch, loss

    def __str__(self):
        return f"loss {self.loss} in epoch {self.epoch}"


class OfData(errors.DataEntryError):
    """A second constructor on top of ours."""

    def __init__(self, row):
        super().__init__("table.csv", f"row {row}", "a number", "'x'")
        self.row = row


def test_every_error_comes_back_with_its_text_and_attributes():
    made = [WithNames(epoch=3, loss=0.5), OfData(7), errors.Interrupted("stopped", 15), errors.OutputError(BrokenPipeError(32, "Broken pipe"))]
    for kind in _classes(errors.DuolnError) - {type(error) for error in made}:
        names = list(inspect.signature(kind.__init__).parameters)[1:] if "__init__" in vars(kind) else ["text"]
        made.append(kind(*(f"the {name}" for name in names)))
    assert {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DuolnError)} <= {type(e) for e in made}
    for error in made:
        error.add_note("a note")
        for way in WAYS.values():
            again = way(error)
            assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error) and again.args == error.args
            assert again.exit_code == error.exit_code
