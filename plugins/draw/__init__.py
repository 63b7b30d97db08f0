"""DRAW on fixed-binarised MNIST: the paper's section 6.4 and figure 4."""

from collections.abc import Sequence
from typing import Any

from duoln.extend import Case, Op, Rule
from duoln.plugins.draw.ops import filterbank, gaussian_latent, write_then_read
from duoln.plugins.draw.ops.cases import cases
from duoln.plugins.draw.ops.cpu import write_then_read_compiled
from duoln.plugins.draw.ops.cuda import filterbank_on_cuda, glimpse_on_cuda
from duoln.plugins.draw.ops.fused_latent import latent_compiled, latent_on_cuda
from duoln.plugins.draw.ops.numpy import write_then_read_in_one_pass
from duoln.plugins.draw.task import DrawTask
from duoln.tasks import Task, hookimpl


@hookimpl
def duoln_tasks() -> list[Task]:
    """The task `draw`."""
    return [DrawTask()]


@hookimpl
def duoln_rules() -> list[tuple[Op[..., Any], Rule, str]]:
    """The fused rules on NumPy, of which the last is tried first, and those of every operator on CUDA."""
    return [(write_then_read, write_then_read_in_one_pass, "numpy"),
            (write_then_read, write_then_read_compiled, "numpy"), (gaussian_latent, latent_compiled, "numpy"),
            (write_then_read, glimpse_on_cuda, "cupy"), (filterbank, filterbank_on_cuda, "cupy"),
            (gaussian_latent, latent_on_cuda, "cupy")]


@hookimpl
def duoln_cases() -> Sequence[Case]:
    """The cases of the rules on CUDA."""
    return cases()
