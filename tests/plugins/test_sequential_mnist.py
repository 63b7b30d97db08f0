"""The task sequential_mnist: the kit for tasks, the order of the pixels, the published start, and batch norm's two ways."""

import numpy as np
import pytest
from conftest import ON_NUMPY
from task_checks import check_task_on, root_with, untrained

import duoln
from duoln import optim
from duoln.data.mnist import read_mnist
from duoln.errors import DataMissingError
from duoln.nn import with_population
from duoln.plugins.mnist import data
from duoln.plugins.sequential_mnist import SequentialMnist
from duoln.randomness import Stream
from duoln.tasks import make_config

TASK = SequentialMnist()
REAL = root_with("mnist")


@pytest.fixture
def few(monkeypatch):
    """Few synthetic digits, which are drawn quickly."""
    monkeypatch.setattr(data, "MADE_TEST", 100)


@ON_NUMPY
def test_it_is_a_task(be, few):
    check_task_on(be, TASK, settings={"rows": 100, "every": 56})
