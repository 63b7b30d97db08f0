"""Listen, attend and spell: the chapter that puts layer norm into a speech recogniser."""

from duoln.plugins.las.task import Las
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `las`."""
    return [Las()]
