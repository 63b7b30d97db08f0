"""Handwriting synthesis: the paper's section 6.5 and figure 5."""

from duoln.plugins.handwriting.task import Handwriting
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `handwriting`."""
    return [Handwriting()]
