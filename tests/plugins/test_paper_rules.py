"""The rules that look at the runs of one seed."""

import math

import pytest
from paper_runs import made

from duoln.plugins.paper.rules import Metric, alike, at_best, better, earlier, less_sensitive, sooner
from duoln.plugins.paper.verdict import of_seeds, so_far

NLL = Metric("train_nll", "lowest", "train NLL")
RECALL = Metric("recall", "highest", "recall", ".1f")


def _figures(seen):
    return [(f.what, f.who, f.value) for f in seen.figures]


# Better -----------------------------------------------------------------------------------------------------

def test_the_lower_or_the_higher_figure_at_the_end_is_better():
    runs = [made("ln", [0.1, 0.3]), made("none", [0.5, 0.4])]
    seen = better("ln", ("none",), (NLL,)).judge(runs)
    assert seen.holds and _figures(seen) == [("train NLL", "ln", 0.3), ("train NLL", "none", 0.4)]
    assert not better("none", ("ln",), (NLL,)).judge(runs[::-1]).holds
    runs = [made("ln", [30.0], metric="recall"), made("none", [40.0], metric="recall")]
    assert not better("ln", ("none",), (RECALL,)).judge(runs).holds


def test_an_equal_figure_is_not_better():
    assert not better("ln", ("none",), (NLL,)).judge([made("ln", [0.4]), made("none", [0.4])]).holds


def test_runs_that_are_both_perfect_cannot_tell():
    error = Metric("train_nll", "lowest", "error", limit=0.0)
    perfect, imperfect = made("ln", [0.0]), made("none", [0.1])
    assert better("ln", ("none",), (error,)).judge([perfect, made("none", [0.0])]).holds is None
    assert better("ln", ("none", "bn"), (error,)).judge([perfect, imperfect, made("bn", [0.0])]).holds is None
    assert better("ln", ("none",), (error,)).judge([perfect, imperfect]).holds is True
    assert better("none", ("ln",), (error,)).judge([imperfect, perfect]).holds is False
    assert better("ln", ("none",), (error,)).judge([made("ln", [0.1]), imperfect]).holds is False


def test_every_loser_and_every_metric_counts():
    runs = [made("bn", [0.2]), made("ln", [0.3]), made("none", [0.1])]
    assert not better("bn", ("ln", "none"), (NLL,)).judge(runs).holds
    assert better("bn", ("ln", "none"), (NLL,)).judge([runs[2]._replace(variant="bn"), *runs[:2]]).holds
    for run, value in zip(runs, (1.0, 2.0, 3.0), strict=True):
        run.result["recall"] = value
    assert not better("none", ("bn",), (NLL, Metric("recall", "lowest", "recall"))).judge([runs[2], runs[0]]).holds


def test_the_best_evaluation_may_be_an_earlier_one():
    runs = [made("ln", [0.1, 0.5]), made("none", [0.6, 0.3])]
    assert not better("ln", ("none",), (NLL,)).judge(runs).holds
    assert better("ln", ("none",), (NLL,), at_best).judge(runs).holds


def test_the_result_of_a_run_that_went_back_to_its_best_model_counts():
    back = made("ln", [0.2, 0.9], result={"status": "done", "updates": 100, "train_nll": 0.2})
    assert better("ln", ("none",), (NLL,)).judge([back, made("none", [0.5, 0.4])]).holds


def test_a_run_that_goes_on_has_its_last_evaluation():
    assert better("ln", ("none",), (NLL,)).judge([made("ln", [0.9, 0.2], result={}), made("none", [0.5, 0.4])]).holds


def test_a_figure_that_is_no_number_is_not_better():
    assert not better("ln", ("none",), (NLL,)).judge([made("ln", [math.nan]), made("none", [0.4])]).holds


# Sooner -----------------------------------------------------------------------------------------------------

def test_updates_are_counted_to_the_losers_best_level():
    runs = [made("ln", [0.5, 0.3, 0.2, 0.1]), made("none", [0.9, 0.6, 0.4, 0.3])]
    seen = sooner("ln", "none", (NLL,)).judge(runs)
    assert seen.holds and [f.value for f in seen.figures] == [0.3, 0.5]
    assert sooner("ln", "none", (NLL,), 0.5).judge(runs).holds and not sooner("ln", "none", (NLL,), 0.4).judge(runs).holds


def test_the_loser_may_be_best_before_its_end():
    runs = [made("ln", [0.5, 0.3, 0.2]), made("none", [0.9, 0.3, 0.4])]
    seen = sooner("ln", "none", (NLL,)).judge(runs)
    assert not seen.holds and seen.figures[1].value == 1.0


def test_a_level_that_is_never_reached():
    seen = sooner("ln", "none", (NLL,)).judge([made("ln", [0.5, math.nan]), made("none", [0.9, 0.3])])
    assert not seen.holds and seen.figures[1].value is None


@pytest.mark.parametrize("values", [([0.3], [0.4]), ([0.3, 0.2], [0.4, 0.5]), ([0.4], [0.4])])
def test_a_level_that_both_reach_by_their_first_evaluation_cannot_tell(values):
    seen = sooner("ln", "none", (NLL,)).judge([made("ln", values[0]), made("none", values[1])])
    assert seen.holds is None and math.isnan(seen.figures[1].value)


def test_a_single_evaluation_tells_that_a_level_is_not_reached():
    seen = sooner("ln", "none", (NLL,)).judge([made("ln", [0.5]), made("none", [0.4])])
    assert seen.holds is False and seen.figures[1].value is None


def test_one_metric_that_says_no_decides_although_another_cannot_be_told():
    winner, loser = made("ln", [20.0], metric="recall"), made("none", [10.0], metric="recall")
    winner.points[0]["train_nll"], loser.points[0]["train_nll"] = 0.5, 0.4
    assert sooner("ln", "none", (RECALL, NLL)).judge([winner, loser]).holds is False


def test_higher_figures_are_reached_from_below():
    runs = [made("ln", [20.0, 40.0], metric="recall"), made("none", [10.0, 15.0], metric="recall")]
    seen = sooner("ln", "none", (RECALL,)).judge(runs)
    assert seen.holds and seen.figures[1].value == 0.5


# The others -------------------------------------------------------------------------------------------------

def test_the_best_model_comes_earlier():
    early = made("ln", [0.1, 0.5], patience=2, result={"status": "done", "updates": 100})
    late = made("none", [0.5, 0.4], patience=2)
    assert earlier("ln", "none").judge([early, late]).holds and not earlier("none", "ln").judge([late, early]).holds
    assert earlier("ln", "none").judge([early, made("none", [0.5, 0.4])]) is None  # its last model is its result


@pytest.mark.parametrize(("values", "holds"), [((-100.0, -98.0), True), ((-98.0, -100.0), True), ((-80.0, -100.0), False)])
def test_figures_that_differ_by_a_share_at_most(values, holds):
    runs = [made(variant, [value]) for variant, value in zip(("ln", "none"), values, strict=True)]
    assert alike(("ln", "none"), NLL, 0.05).judge(runs).holds is holds


def test_the_batch_size_matters_less_where_the_ratio_is_smaller_at_the_last_common_epoch():
    rule = less_sensitive(("ln", "bn"), NLL, "batch_size", (4, 128))
    assert [(role.variant, role.settings["batch_size"]) for role in rule.roles] == [("ln", 4), ("ln", 128), ("bn", 4), ("bn", 128)]
    runs = [made("ln", [0.4, 0.2]), made("ln", [0.3, 0.1, 0.01]), made("bn", [0.4, 0.1]), made("bn", [0.4, 0.4])]
    seen = rule.judge(runs)
    assert seen.holds and seen.figures[0].what == "train NLL after epoch 2"
    assert [round(f.value, 6) for f in seen.figures] == [0.2, 0.1, 0.1, 0.4, 2.0, 4.0]
    assert not rule.judge([*runs[2:], *runs[:2]]).holds


def test_without_a_figure_there_is_no_answer():
    runs = [made("ln", [0.1]), made("none", [0.2])]
    for rule in (better("ln", ("none",), (RECALL,)), sooner("ln", "none", (RECALL,)), alike(("ln", "none"), RECALL, 0.1),
                 better("ln", ("none",), (RECALL,), at_best)):
        assert rule.judge(runs) is None
    apart = [made("ln", [0.1]), made("ln", [0.1])]
    apart[1].points[0]["epoch"] = 0.5
    assert less_sensitive(("ln", "bn"), NLL, "batch_size", (4, 128)).judge([*apart, *runs]) is None


def test_a_rule_says_what_it_does():
    assert sooner("ln", "none", (NLL,), 0.6).words == "ln reaches none's best train NLL in at most 60% of its updates"
    assert better("bn", ("ln", "none"), (NLL,)).words == "bn has the better train NLL at the end than ln and none"


@pytest.mark.parametrize("values", [(3.0, math.nan, 1.0), (math.nan, 1.0, 3.0), (1.0, 3.0, math.nan)])
def test_the_best_value_does_not_depend_on_where_a_nan_is(values):
    assert Metric("a", "lowest", "a").best(values) == 1.0 and Metric("a", "highest", "a").best(values) == 3.0
    assert math.isnan(Metric("a", "lowest", "a").best([math.nan]))


# Verdicts ---------------------------------------------------------------------------------------------

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
