"""DRAW on fixed-binarised MNIST: the paper's section 6.4 and figure 4."""

from typing import Any

from duoln.extend import Op, Rule
from duoln.plugins.draw.ops import write_then_read
from duoln.plugins.draw.ops.native import write_then_read_compiled
from duoln.plugins.draw.ops.numpy import write_then_read_in_one_pass
from duoln.plugins.draw.task import DrawTask
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `draw`."""
    return [DrawTask()]


@hookimpl
def duoln_rules() -> list[tuple[Op[..., Any], Rule, str]]:
    """The fused rules of `write_then_read` on NumPy; the last is tried first."""
    return [(write_then_read, write_then_read_in_one_pass, "numpy"),
            (write_then_read, write_then_read_compiled, "numpy")]
