"""Order embeddings of images and captions: the paper's section 6.1, table 2 and figure 1."""

from typing import Any

from duoln.extend import Op, Rule
from duoln.plugins.order_embeddings.ops import (
    order_violation,
    order_violation_compiled,
    order_violation_of_captions,
)
from duoln.plugins.order_embeddings.task import OrderEmbeddings
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `order_embeddings`."""
    return [OrderEmbeddings()]


@hookimpl
def duoln_rules() -> list[tuple[Op[..., Any], Rule, str]]:
    """The fused rules of `order_violation` on NumPy; the last is tried first."""
    return [(order_violation, order_violation_of_captions, "numpy"),
            (order_violation, order_violation_compiled, "numpy")]
