"""The tables of README.md and RESULTS.md agree with the runs that are kept beside them."""

import pytest
from readme_tables import ROOT, pages, renewed


@pytest.mark.parametrize("page", list(pages()), ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_tables_are_those_of_the_kept_runs(page):
    assert renewed(page) == page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", list(pages()), ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_a_page_is_short(page):
    assert len(page.read_text(encoding="utf-8").split()) <= {"README.md": 300, "RESULTS.md": 520}[page.name]


def test_the_kept_runs_are_small():
    files = [path for path in (ROOT / "plugins").glob("*/results/*/*/*") if path.is_file()]
    assert {path.name for path in files} <= {"config.json", "result.json", "curves.csv", "evaluation.json"}
    assert sum(path.stat().st_size for path in files) < 12e6
