"""How an array lies in memory changes no result of any operator: the table of cases, each array in each layout."""

import pytest
from composed_layouts import check_layouts, is_small
from ops.cases import CASES


def test_no_layout_changes_a_composed_rule():
    assert check_layouts([case for case in CASES if is_small(case)]) >= 10500


@pytest.mark.minutes
def test_no_layout_changes_a_composed_rule_of_large_arrays():
    assert check_layouts([case for case in CASES if not is_small(case)]) >= 300
