"""Measures the theory of the paper: its statements on normalised models are checked on models and data.

`invariance` is table 1 (section 5.1); `geometry` the Fisher information of normalised generalised linear models
(section 5.2 and the supplement), of `glm` and `fisher`, with `growth` of the weights, and `statements` what follows;
`magnitude` how fast the size of the weights is learnt when inputs are scaled (section 5.2.2); `stability` the claim of
section 3.1 on recurrent networks. `shift` trains a task's variants to measure how far the inputs of their layers move:
the covariate shift of a chapter on speech recognition. Each takes a backend and a seed and gives plain data.
"""

from duoln.plugins.theory import analyze
from duoln.tasks import Command, hookimpl


@hookimpl
def duoln_commands() -> list[Command]:
    """The command `analyze`."""
    return [analyze.COMMAND]
