"""A character language model by a Transformer: where its norms stand, and whether its learning rate must warm up."""

from duoln.plugins.transformer.task import TransformerTask
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `transformer`."""
    return [TransformerTask()]
