"""The cases of every fused rule, made once for all tests of a process: their arrays take a second."""

import functools

from duoln.kernels.case_table import rule_cases

every_case = functools.cache(rule_cases)
