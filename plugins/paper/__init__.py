"""The state of the reproduction: the `contents` of the paper, and in `standing` how far our runs reproduce each entry.
Its command is `duoln paper`.
"""

from duoln.plugins.paper import paper
from duoln.tasks import Command, hookimpl


@hookimpl
def duoln_commands() -> list[Command]:
    """The command `paper`."""
    return [paper.COMMAND]
