"""Results by the contract of a task: the tables of the paper are checked where the method returns."""

import pytest

from duoln.tasks import ReferenceTable
from duoln.tasks.contract import RESULTS
from duoln.tasks.registry import Registry

TABLE = ReferenceTable("table 2", ("", "R@1"), [("plain", "46.6")])


def test_a_good_table_is_passed_on():
    assert RESULTS["reference_tables"]((TABLE,)) == [TABLE]


@pytest.mark.parametrize(("tables", "words"), [
    (TABLE._replace(rows=[("plain",)]), "rows of 2 cells"), (TABLE._replace(rows=[("plain", 46.6)]), "texts in a table of the paper"),
    (TABLE._replace(where=2), "texts in a table of the paper"), (("table 2",), "a list of ReferenceTable")])
def test_a_bad_table_is_told(tables, words):
    with pytest.raises(TypeError, match=words):
        RESULTS["reference_tables"]([tables] if isinstance(tables, ReferenceTable) else tables)


def test_a_task_has_none_unless_it_says_so():
    tables = {name: entry.task.reference_tables() for name, entry in Registry().tasks.items()}
    assert {name for name, of_task in tables.items() if of_task} == {"order_embeddings", "skip_thoughts"}
    assert [table.where for name in ("order_embeddings", "skip_thoughts") for table in tables[name]] == ["table 2", "table 3"]
