"""The cases of every fused rule, once for all tests of a process, and what is known of them before their arrays are made."""

import contextlib
import functools

import numpy as np
import pytest

from duoln.kernels import case_table
from duoln.kernels.case_table import rule_cases

every_case = functools.cache(rule_cases)


def width(norm):
    """Of the rows of a norm's case."""
    return int(norm.label.partition(",")[0].rpartition(" ")[2])


@contextlib.contextmanager
def zeros():
    """Where cases are made of zeros that take no memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case_table, "_floats", lambda rng, *shape, scale=1: np.broadcast_to(np.float32(0), shape))
        yield


def values(cases):
    """The number of values of each case."""
    with zeros():
        return [sum(a.size for a in case.inputs if a is not None) for case in cases]
