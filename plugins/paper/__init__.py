"""The state of the reproduction: the `contents` of the paper, and in `standing` how far our runs reproduce each entry.
Its commands are `duoln paper`, and `duoln keep`, which keeps the evidence.
"""

from duoln.plugins.paper import keep, paper
from duoln.tasks import Command, hookimpl


@hookimpl
def duoln_commands() -> list[Command]:
    """The commands `paper` and `keep`."""
    return [paper.COMMAND, keep.COMMAND]
