"""Which tests are in the quick run, which with --long, and which are a share of the others."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS, chosen_of


class Case:
    """A test as pytest has collected it."""

    def __init__(self, name, *marks):
        self.name = self.nodeid = name
        self.originalname, self.path, self.parent, self.keywords = name.partition("[")[0], "file", Parent, set(marks)


class Parent:
    name = "file"


def _cases(test, *marks):
    return [Case(f"{test}[{a}-{b}-{c}]", *marks) for a, b, c in itertools.product(("numpy", "mlx", "cupy"), range(10, 17), "fgh")]


def _words(cases, few):
    """The words of their names; if few, those with which the names begin."""
    return {word for case in cases for word in re.findall(r"\w+", case.name.partition("[")[2])[:1 if few else None]}


@pytest.mark.parametrize(("marks", "most"), [((), 13), (("few",), 3)], ids=["words", "few"])
def test_of_many_cases_the_quick_run_has_each_word_of_their_names(marks, most):
    cases = _cases("test_many", *marks)
    chosen = chosen_of(cases)
    assert _words(chosen, marks) == _words(cases, marks)
    assert len(chosen) <= most < len(cases) == 63
    assert chosen == [case for case in cases if case in chosen] == chosen_of(chosen)


def test_a_few_cases_are_all_in_the_quick_run():
    quick = [*_cases("test_few")[:6], Case("test_one")]
    assert chosen_of([*quick, Case("test_long", "long")]) == quick


SHARES_ALONE = {"kernels/test_native_cases.py", "distributed/test_hosts.py", "runs/test_crash_points.py"}
"""Test files of modules that other files test, too."""


def test_each_test_file_has_a_test_in_the_quick_run(request):
    """A module has one test file, by its name. Files that need another library alone are not asked."""
    config = request.config
    if [Path(word).resolve() for word in config.args] != [TESTS] or config.option.keyword or config.option.markexpr:
        pytest.skip("only a run of all files can tell")
    asked = [path for path in TESTS.rglob("test_*.py") if not re.search(r"^(\w+ = )?pytest\.importorskip", path.read_text(), re.MULTILINE)]
    quick = {item.path for item in chosen_of(request.session.items)}
    assert {path.relative_to(TESTS).as_posix() for path in asked if path not in quick} == SHARES_ALONE


def test_shares_have_each_other_test_once():
    cases = [*_cases("test_many"), *_cases("test_long", "long")]
    short, shares = set(chosen_of(cases)), [set(chosen_of(cases, f"{k}/3")) for k in range(3)]
    assert all(short < share for share in shares) and set.union(*shares) == set(cases) == set(chosen_of(cases, "0/1"))
    assert all(a & b == short for a, b in itertools.combinations(shares, 2))


def test_what_takes_minutes_is_in_no_share():
    cases = [Case("test_one"), Case("test_slow", "minutes")]
    assert all(chosen_of(cases, f"{k}/3") == cases[:1] for k in range(3)) and chosen_of(cases, "0/1") == cases


@pytest.mark.long
def test_a_marker_that_conftest_sets_can_be_asked_for():
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-m", "numerical", "tests/test_optim.py"], check=False,
                          cwd=TESTS.parent, capture_output=True, text=True)
    assert "tests/test_optim.py: " in done.stdout, done.stdout + done.stderr
