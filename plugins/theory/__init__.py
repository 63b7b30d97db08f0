"""Measures the theory of the paper: its statements on normalised models are checked on models and data.

`invariance` is table 1 (section 5.1); `geometry` the Fisher information of normalised generalised linear models
(section 5.2 and the supplement), of `glm`; `magnitude` how fast the size of the weights is learnt when inputs are
scaled (section 5.2.2); `stability` the claim of section 3.1 on recurrent networks; `equations` compares layers and
cells with what is printed. `trained` trains a task's variants and looks at their layers. Each gives a `report`.
"""

from duoln.plugins.theory import analyze
from duoln.tasks import Command, hookimpl


@hookimpl
def duoln_commands() -> list[Command]:
    """The command `analyze`."""
    return [analyze.COMMAND]
