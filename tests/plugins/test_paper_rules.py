"""The rules that look at the runs of all seeds."""

import math

import pytest
from paper_runs import made

from duoln.plugins.paper.claims import clear
from duoln.plugins.paper.rules import Metric, alike, at_best, better, earlier, less_sensitive, sooner

NLL = Metric("train_nll", "lowest", "train NLL")
RECALL = Metric("recall", "highest", "recall", ".1f")


def _figures(seen):
    return [(f.what, f.who, *f.values) for f in seen.figures]


def _runs(*values, **settings):
    """One seed of `ln` and of `none`, and of `bn` if there are three."""
    return [[made(variant, list(of_run), **settings)] for variant, of_run in zip(("ln", "none", "bn"), values, strict=False)]


def _seeds(*of_variants):
    """For each variant one run a seed, of one value."""
    return [[made(variant, [value], seed) for seed, value in enumerate(values)] for variant, values in zip(("ln", "none"), of_variants, strict=True)]


def test_seeds_are_clear_of_each_other_or_overlap():
    assert clear([1, 2], [3, 4]) is True and clear([3, 4], [1, 2]) is False
    assert clear([1, 3], [2, 4]) is clear([1, 2], [2, 3]) is clear([1], [1]) is clear([math.inf], [math.inf]) is None


# Better -----------------------------------------------------------------------------------------------------

def test_the_lower_or_the_higher_figure_at_the_end_is_better():
    seen = better("ln", ("none",), (NLL,)).judge(_runs([0.1, 0.3], [0.5, 0.4]))
    assert seen.holds and _figures(seen) == [("train NLL", "ln", 0.3), ("train NLL", "none", 0.4)]
    assert better("ln", ("none",), (NLL,)).judge(_runs([0.5, 0.4], [0.1, 0.3])).holds is False
    assert better("ln", ("none",), (RECALL,)).judge(_runs([30.0], [40.0], metric="recall")).holds is False


@pytest.mark.parametrize(("ln", "none", "holds"), [((1, 2, 3), (4, 5, 6), True), ((4, 5, 6), (1, 2, 3), False), ((1, 2, 4), (3, 5, 6), None),
                                                   ((0.4,) * 3, (0.4,) * 3, None), ((1, 2, 3), (3, 4, 5), None), ((math.nan, 1, 1), (2, 2, 2), None)])
def test_the_difference_is_greater_than_the_spread_of_the_seeds(ln, none, holds):
    assert better("ln", ("none",), (NLL,)).judge(_seeds(ln, none)).holds is holds


def test_every_loser_and_every_metric_counts():
    runs = _runs([0.2], [0.1], [0.3])
    assert better("ln", ("none", "bn"), (NLL,)).judge(runs).holds is False
    assert better("none", ("ln", "bn"), (NLL,)).judge([runs[1], runs[0], runs[2]]).holds is True
    for [run], value in zip(runs, (2.0, 1.0, 3.0), strict=True):
        run.result["recall"] = value
    assert better("none", ("bn",), (NLL, RECALL)).judge([runs[1], runs[2]]).holds is False


@pytest.mark.parametrize(("ln", "none", "guess", "holds"), [(0.3, 0.4, 0.5, True), (0.3, 0.6, 0.5, True), (0.5, 0.6, 0.5, None), (0.4, 0.3, 0.5, False),
                                                            (0.6, 0.55, 0.5, None)])
def test_a_winner_beats_what_is_trivial(ln, none, guess, holds):
    error = Metric("train_nll", "lowest", "error", level="guess")
    runs = _runs([0.9, ln], [0.9, none])
    for [run] in runs:
        run.points[-1]["guess"] = guess
    assert better("ln", ("none",), (error,)).judge(runs).holds is holds


def test_a_level_that_is_trivial_tells_nothing():
    error = Metric("train_nll", "lowest", "error", level="guess")
    runs = _runs([0.4, 0.3], [0.9, 0.4])
    for guess, holds in ((0.5, True), (0.4, None)):
        for [run] in runs:
            run.points[-1]["guess"] = guess
        assert sooner("ln", "none", (error,)).judge(runs).holds is holds


def test_the_best_evaluation_may_be_an_earlier_one():
    runs = _runs([0.1, 0.5], [0.6, 0.3])
    assert better("ln", ("none",), (NLL,)).judge(runs).holds is False
    assert better("ln", ("none",), (NLL,), at_best).judge(runs).holds


def test_the_result_of_a_run_that_went_back_to_its_best_model_counts():
    back = made("ln", [0.2, 0.9], result={"status": "done", "updates": 100, "train_nll": 0.2})
    assert better("ln", ("none",), (NLL,)).judge([[back], [made("none", [0.5, 0.4])]]).holds


def test_a_run_that_goes_on_has_its_last_evaluation():
    assert better("ln", ("none",), (NLL,)).judge([[made("ln", [0.9, 0.2], result={})], [made("none", [0.5, 0.4])]]).holds


# Sooner -----------------------------------------------------------------------------------------------------

def test_updates_are_counted_to_the_best_level_that_all_runs_reach():
    seen = sooner("ln", "none", (NLL,)).judge(_runs([0.5, 0.3, 0.2, 0.1], [0.9, 0.6, 0.4, 0.3]))
    assert seen.holds and _figures(seen) == [("train NLL that all reach", "", 0.3), ("updates until there", "ln", 200), ("updates until there", "none", 400)]
    back = sooner("ln", "none", (NLL,)).judge(_runs([0.9, 0.6, 0.4, 0.3], [0.5, 0.3, 0.2, 0.1]))
    assert back.holds is False and back.figures[0].values == [0.3]


def test_the_level_is_one_of_all_seeds_and_they_must_not_overlap():
    rule = sooner("ln", "none", (NLL,))
    runs = [[made("ln", [0.5, 0.1, 0.1]), made("ln", [0.1, 0.1, 0.1])], [made("none", [0.9, 0.8, 0.4]), made("none", [0.9, 0.8, 0.3])]]
    assert rule.judge(runs).holds and rule.judge(runs).figures[0].values == [0.4]
    runs[0][0] = made("ln", [0.9, 0.8, 0.1])
    assert rule.judge(runs).holds is None


@pytest.mark.parametrize(("ln", "share", "holds"), [([0.5, 0.3, 0.2, 0.1], 0.6, True), ([0.5, 0.3, 0.2, 0.1], 0.5, None), ([0.9, 0.6, 0.3, 0.1], 0.6, None),
                                                    ([0.9, 0.6, 0.5, 0.3], 0.6, False), ([0.1, 0.1, 0.1, 0.1], 0.1, None)])
def test_a_share_is_met_or_missed_only_if_the_evaluations_are_close_enough(ln, share, holds):
    assert sooner("ln", "none", (NLL,), share).judge(_runs(ln, [0.9, 0.6, 0.4, 0.3])).holds is holds


@pytest.mark.parametrize("values", [([0.3], [0.4]), ([0.3, 0.2], [0.4, 0.5]), ([0.4], [0.4]), ([0.5], [0.4])])
def test_a_level_that_both_reach_by_their_first_evaluation_cannot_tell(values):
    assert sooner("ln", "none", (NLL,)).judge(_runs(*values)).holds is None


def test_one_metric_that_says_no_decides_although_another_cannot_be_told():
    runs = _runs([0.9, 0.3], [0.3, 0.3])
    for [run] in runs:
        for point in run.points:
            point["recall"] = 10.0
    assert sooner("ln", "none", (RECALL, NLL)).judge(runs).holds is False


def test_higher_figures_are_reached_from_below():
    seen = sooner("ln", "none", (RECALL,)).judge(_runs([20.0, 40.0], [10.0, 15.0], metric="recall"))
    assert seen.holds and [f.values for f in seen.figures] == [[15.0], [100], [200]]


# The others -------------------------------------------------------------------------------------------------

def test_the_best_model_comes_earlier():
    early, late = made("ln", [0.5, 0.1, 0.6, 0.7, 0.7]), made("none", [0.5, 0.4, 0.4, 0.3, 0.9])
    assert earlier("ln", "none", NLL).judge([[early], [late]]).holds
    assert earlier("none", "ln", NLL).judge([[late], [early]]).holds is False
    assert earlier("ln", "none", NLL, 0.6).judge([[early], [late]]).holds and earlier("ln", "none", NLL, 0.4).judge([[early], [late]]).holds is None
    assert _figures(earlier("ln", "none", NLL).judge([[early], [late]])) == [("updates to its own best model", "ln", 200), ("updates to its own best model", "none", 400)]


def test_a_run_that_is_best_at_its_end_tells_nothing():
    runs = _runs([0.5, 0.1, 0.6], [0.5, 0.4, 0.3])
    assert earlier("ln", "none", NLL).judge(runs).holds is None
    assert earlier("ln", "none", NLL, stopped=True).judge(runs) is None
    assert earlier("ln", "none", NLL, stopped=True).judge(_runs([0.5, 0.1, 0.6], [0.5, 0.4, 0.3], patience=2)) is not None


@pytest.mark.parametrize(("values", "holds"), [(((-100.0,), (-98.0,)), True), (((-98.0,), (-100.0,)), True), (((-80.0,), (-100.0,)), False),
                                               (((-100.0, -90.0), (-99.0, -98.0)), None)])
def test_figures_that_differ_by_a_share_at_most(values, holds):
    assert alike(("ln", "none"), NLL, 0.05).judge(_seeds(*values)).holds is holds


def test_the_batch_size_matters_less_where_the_ratio_is_smaller_at_the_last_common_epoch():
    rule = less_sensitive(("ln", "bn"), NLL, "batch_size", (4, 128))
    assert [(role.variant, role.settings["batch_size"]) for role in rule.roles] == [("ln", 4), ("ln", 128), ("bn", 4), ("bn", 128)]
    runs = [[made("ln", [0.4, 0.2])], [made("ln", [0.3, 0.1, 0.01])], [made("bn", [0.4, 0.1])], [made("bn", [0.4, 0.4])]]
    seen = rule.judge(runs)
    assert seen.holds and seen.figures[0].what == "train NLL after epoch 2"
    assert [round(f.values[0], 6) for f in seen.figures] == [0.2, 0.1, 0.1, 0.4, 2.0, 4.0]
    assert rule.judge([*runs[2:], *runs[:2]]).holds is False


def test_figures_of_the_end_want_whole_runs():
    assert better("ln", ("none",), (NLL,)).whole and alike(("ln", "none"), NLL, 0.1).whole
    assert not sooner("ln", "none", (NLL,)).whole and not earlier("ln", "none", NLL).whole


def test_without_a_figure_there_is_no_answer():
    runs = _runs([0.1], [0.2])
    for rule in (better("ln", ("none",), (RECALL,)), sooner("ln", "none", (RECALL,)), alike(("ln", "none"), RECALL, 0.1),
                 earlier("ln", "none", RECALL), better("ln", ("none",), (RECALL,), at_best)):
        assert rule.judge(runs) is None
    apart = [[made("ln", [0.1])], [made("ln", [0.1])]]
    apart[1][0].points[0]["epoch"] = 0.5
    assert less_sensitive(("ln", "bn"), NLL, "batch_size", (4, 128)).judge([*apart, *runs]) is None


def test_a_rule_says_what_it_does():
    assert sooner("ln", "none", (NLL,), 0.6).words == "ln needs fewer than 60% of the updates of none to the train NLL that all runs reach"
    assert better("bn", ("ln", "none"), (NLL,)).words == "bn has the better train NLL at the end than ln and none"


@pytest.mark.parametrize("values", [(3.0, math.nan, 1.0), (math.nan, 1.0, 3.0), (1.0, 3.0, math.nan)])
def test_the_best_value_does_not_depend_on_where_a_nan_is(values):
    assert at_best(made("ln", list(values)), NLL) == 1.0 and at_best(made("ln", list(values), metric="recall"), RECALL) == 3.0
    assert at_best(made("ln", [math.nan]), NLL) is None
