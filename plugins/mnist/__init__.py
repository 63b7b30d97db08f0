"""Permutation-invariant MNIST: the paper's section 6.6 and figure 6."""

from duoln.plugins.mnist.task import Mnist
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `mnist`."""
    return [Mnist()]
