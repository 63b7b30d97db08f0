"""The attentive reader of CNN questions: the paper's section 6.2 and figure 2."""

from duoln.plugins.attentive_reader.task import AttentiveReader
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `attentive_reader`."""
    return [AttentiveReader()]
