"""Order embeddings of images and captions: the paper's section 6.1, table 2 and figure 1."""

from duoln.plugins.order_embeddings.task import OrderEmbeddings
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `order_embeddings`."""
    return [OrderEmbeddings()]

