"""The peers that a task declares: which module builds one, with which options, and what is refused."""

import importlib
from typing import ClassVar

import pytest

from duoln.errors import PluginError, UsageError
from duoln.plugins.mnist import peer_torch
from duoln.plugins.mnist.task import Mnist
from duoln.tasks import Task
from duoln.tasks.contract import check_attributes
from duoln.tasks.registry import find_task
from duoln.testing import check_error

PLUGINS = ("attentive_reader", "convnet", "draw", "handwriting", "las", "mnist", "order_embeddings", "skip_thoughts",
           "transformer")


class Elsewhere(Mnist):
    """A task of another module that keeps the peers of the one it extends."""


class Declaring(Task):
    """A task whose package has no such module."""

    name = "declaring"
    peers: ClassVar = {"nothing": {}}


def test_a_name_without_options_is_the_function_itself():
    assert Mnist().peer("torch") is peer_torch.build


def test_options_are_given_to_the_function():
    fused = Mnist().peer("torch-fused")
    assert fused.func is peer_torch.build and fused.keywords == {"fused": True}


def test_a_subclass_elsewhere_keeps_the_peers():
    assert Elsewhere().peer("torch") is peer_torch.build


@pytest.mark.parametrize("name", PLUGINS)
def test_every_experiment_declares_its_peers(name):
    task = find_task(name)
    build = importlib.import_module(f"duoln.plugins.{name}.peer_torch").build
    assert "torch" in task.peers and len(task.peers) > 1
    for options in task.peers.values():
        assert set(options) <= set(build.__code__.co_varnames[:build.__code__.co_argcount])
    check_error(UsageError, lambda: task.peer("jax"), f"[{name}] expected a peer of {', '.join(task.peers)}; found 'jax'")


def test_a_task_without_peers_says_so():
    check_error(UsageError, lambda: Task().peer("torch"), "found 'torch'; it has none")


def test_a_declared_peer_without_its_module_names_the_module():
    with pytest.raises(ModuleNotFoundError, match="peer_nothing"):
        Declaring().peer("nothing")


def test_peers_that_are_no_tables_are_refused():
    task = Mnist()
    task.peers = {"torch": 1}
    check_error(PluginError, lambda: check_attributes(task), "peers: expected settings as 'torch'")
