"""Skip-thoughts: the paper's section 6.3, table 3 and figure 3."""

from duoln.plugins.skip_thoughts.task import SkipThoughtsTask
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `skip_thoughts`."""
    return [SkipThoughtsTask()]
