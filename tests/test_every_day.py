"""Which tests are in the quick run, which with --long, and which are a share of the others."""

import itertools
import re
import subprocess
import sys

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


def test_shares_have_each_other_test_once():
    cases = [*_cases("test_many"), *_cases("test_long", "long")]
    short, shares = set(chosen_of(cases)), [set(chosen_of(cases, f"{k}/3")) for k in range(3)]
    assert all(short < share for share in shares) and set.union(*shares) == set(cases) == set(chosen_of(cases, "0/1"))
    assert all(a & b == short for a, b in itertools.combinations(shares, 2))


def test_what_takes_minutes_is_in_no_share():
    cases = [Case("test_one"), Case("test_slow", "minutes")]
    assert all(chosen_of(cases, f"{k}/3") == cases[:1] for k in range(3)) and chosen_of(cases, "0/1") == cases


def test_a_marker_that_conftest_sets_can_be_asked_for():
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-m", "numerical", "tests/test_optim.py"], check=False,
                          cwd=TESTS.parent, capture_output=True, text=True)
    assert "tests/test_optim.py: " in done.stdout, done.stdout + done.stderr
