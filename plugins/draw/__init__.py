"""DRAW on fixed-binarised MNIST: the paper's section 6.4 and figure 4."""

from duoln.plugins.draw.task import DrawTask
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `draw`."""
    return [DrawTask()]
