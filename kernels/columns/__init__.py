"""The sums of columns on CUDA, in one fixed order: the second half of every gradient that many rows share."""

from __future__ import annotations

from duoln.kernels.launch import Launch
from duoln.kernels.launch.declared import Layout

_COLUMNS, _ROWS_AT_ONCE = 8, 64
_MOST_ROWS, _ROWS_OF_GROUP = 2048, 1024
"""With more rows, groups of them are added up first, so that enough blocks work."""
_MOST_GROUPS = 1 << 14
"""A grid has at most 65,535 blocks along its second axis; so many keep any device busy."""


def groups_of(rows: int) -> tuple[int, int]:
    """Number of rows that are added up at once, and number of such groups."""
    group = max(_ROWS_OF_GROUP, -(-rows // _MOST_GROUPS)) if rows > _MOST_ROWS else max(rows, 1)
    return group, max(-(-rows // group), 1)


def _plan(rows: int, width: int, has_y: bool) -> Layout:
    return Layout((-(-width // _COLUMNS), groups_of(rows)[1], 1 + has_y), (_COLUMNS, _ROWS_AT_ONCE))


SUM_COLUMNS = Launch("columns/columns", "sum_columns", "x: stored[rows, width], y: stored[rows, width]?, sums: own, "
                                                       "rows_of_group: int32", _plan)
"""`launch.cuda.sum_columns` calls it."""
