"""From what seeds say to a verdict."""

import pytest

from duoln.plugins.paper.verdict import of_seeds, so_far


@pytest.mark.parametrize(("seeds", "share", "word"), [
    ([True] * 3, 0.01, "holds"), ([False] * 3, 0.01, "does not hold"), ([True], 1.0, "holds"), ([False], 1.2, "does not hold"),
    ([True] * 2, 0.99, "too short to tell"), ([True, True, False], 0.99, "too short to tell"), ([True, None, True], 0.5, "too short to tell"),
    ([None] * 3, 2.0, "too short to tell"), ([], 0.0, "not measured"), ([], 2.0, "not measured")])
def test_all_seeds_say_the_same_and_are_three_or_whole(seeds, share, word):
    assert of_seeds(seeds, share) == word


def test_three_whole_runs_that_differ_depend_on_the_seed():
    assert of_seeds([True, True, False], 1.0) == "depends on the seed" == of_seeds([False, True, False], 1.2, only_whole=True)
    assert of_seeds([True, False], 2.0) == of_seeds([True, None, False], 2.0) == "too short to tell"


def test_a_claim_about_the_end_needs_whole_runs():
    assert of_seeds([True] * 5, 0.9, only_whole=True) == "too short to tell" and of_seeds([True] * 5, 1.0, only_whole=True) == "holds"


def test_an_exact_computation_needs_no_seeds():
    assert [of_seeds([holds], 1.0) for holds in (True, False, None)] == ["holds", "does not hold", "too short to tell"]


def test_what_is_seen_so_far():
    assert so_far([None]) == "so far: it cannot be told (1 seed)" and so_far([True]) == "so far: it holds (1 seed)"
    assert so_far([False, False]) == "so far: it does not hold (2 seeds)"
    assert so_far([True, False, None, True]) == "so far: it holds for 2 of 4 seeds"
