"""A small convolutional network on CIFAR-10 and MNIST: the paper's section 6.7."""

from duoln.plugins.convnet.task import ConvNetTask
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `convnet`."""
    return [ConvNetTask()]
