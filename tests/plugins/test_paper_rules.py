"""The rules that decide a claim, from the runs of all seeds or from a finding, and how often they are wrong."""

import math
from pathlib import Path

import numpy as np
import pytest
from paper_runs import made

from duoln.plugins.paper import rules
from duoln.plugins.paper.rules import Metric, alike, at_best, better, clear, earlier, less_sensitive, sooner
from duoln.plugins.paper.standing import ENOUGH_SEEDS

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


@pytest.mark.parametrize(("guess", "holds"), [(0.5, True), (0.4, None)])
def test_a_level_that_is_trivial_tells_nothing(guess, holds):
    runs = _runs([0.4, 0.3], [0.9, 0.4])
    for [run] in runs:
        run.points[-1]["guess"] = guess
    assert sooner("ln", "none", (Metric("train_nll", "lowest", "error", level="guess"),)).judge(runs).holds is holds


def test_the_best_evaluation_or_the_result_may_be_an_earlier_one():
    runs = _runs([0.1, 0.5], [0.6, 0.3])
    assert better("ln", ("none",), (NLL,)).judge(runs).holds is False
    assert better("ln", ("none",), (NLL,), at_best).judge(runs).holds
    back = made("ln", [0.2, 0.9], result={"status": "done", "updates": 100, "train_nll": 0.2})
    for run in (back, made("ln", [0.9, 0.2], result={})):  # the last evaluation of one that goes on
        assert better("ln", ("none",), (NLL,)).judge([[run], [made("none", [0.5, 0.4])]]).holds


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


_NONE = [0.9, 0.6, 0.4, 0.3]


@pytest.mark.parametrize(("ln", "none", "share", "holds"), [
    ([0.5, 0.3, 0.2, 0.1], _NONE, 0.6, True), ([0.5, 0.3, 0.2, 0.1], _NONE, 0.5, None), ([0.9, 0.6, 0.3, 0.1], _NONE, 0.6, None),
    ([0.9, 0.6, 0.5, 0.3], _NONE, 0.6, False), ([0.1, 0.1, 0.1, 0.1], _NONE, 0.1, None),
    ([0.3], [0.4], 1.0, None), ([0.3, 0.2], [0.4, 0.5], 1.0, None), ([0.5], [0.4], 1.0, None)])  # both by their first evaluation
def test_a_share_is_met_or_missed_only_if_the_evaluations_are_close_enough(ln, none, share, holds):
    assert sooner("ln", "none", (NLL,), share).judge(_runs(ln, none)).holds is holds


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


def test_without_a_figure_there_is_no_answer():
    runs = _runs([0.1], [0.2])
    for rule in (better("ln", ("none",), (RECALL,)), sooner("ln", "none", (RECALL,)), alike(("ln", "none"), RECALL, 0.1),
                 earlier("ln", "none", RECALL), better("ln", ("none",), (RECALL,), at_best)):
        assert rule.judge(runs) is None
    apart = [[made("ln", [0.1])], [made("ln", [0.1])]]
    apart[1][0].points[0]["epoch"] = 0.5
    assert less_sensitive(("ln", "bn"), NLL, "batch_size", (4, 128)).judge([*apart, *runs]) is None


def test_a_rule_says_what_it_does_and_figures_of_the_end_want_whole_runs():
    by_words = {rule.words: rule.whole for rule in (sooner("ln", "none", (NLL,), 0.6), better("bn", ("ln", "none"), (NLL,)), alike(("ln", "none"), NLL, 0.1))}
    assert by_words == {"ln needs fewer than 60% of the updates of none to the train NLL that all runs reach": False,
                        "bn has the better train NLL at the end than ln and none": True, "the final train NLL of ln and none differ by at most 10%": True}


@pytest.mark.parametrize("values", [(3.0, math.nan, 1.0), (math.nan, 1.0, 3.0), (1.0, 3.0, math.nan)])
def test_the_best_value_does_not_depend_on_where_a_nan_is(values):
    assert at_best(made("ln", list(values)), NLL) == 1.0 and at_best(made("ln", list(values), metric="recall"), RECALL) == 3.0
    assert at_best(made("ln", [math.nan]), NLL) is None


# Equal variants ----------------------------------------------------------------------------------------------

DRAWS, EVALUATIONS = 250, np.arange(1, 21)
RULES = {"better": better("ln", ("none",), (NLL,)), "sooner": sooner("ln", "none", (NLL,)),
         "sooner, share": sooner("ln", "none", (NLL,), 0.6), "earlier": earlier("ln", "none", NLL),
         "less_sensitive": less_sensitive(("ln", "none"), NLL, "batch_size", (4, 128)), "alike": alike(("ln", "none"), NLL, 0.05)}


def curve(shape, rng):
    """The values of a run. Seeds differ by their rate, level or time of escape, and each evaluation has noise."""
    t, apart = EVALUATIONS, rng.normal()
    values = {"falling": lambda: 0.1 + np.exp(-t / 6 * np.exp(0.1 * apart)),
              "flat": lambda: (0.3 + np.exp(-t / 3)) * np.exp(0.02 * apart),
              "plateau": lambda: np.where(t < 4 + 4 * np.exp(0.5 * apart), 1.0, 0.2),
              "rising again": lambda: 0.3 + ((t - 8 * np.exp(0.2 * apart)) / 20) ** 2,
              "few values": lambda: (0.02 + 0.2 * np.exp(-t / 3)) * np.exp(0.05 * apart)}[shape]()
    noisy = values * np.exp(rng.normal(0, 0.05 if shape == "flat" else 0.02, len(t)))
    return (np.round(noisy, 2) if shape == "few values" else noisy).tolist()


SHAPES = ("falling", "flat", "plateau", "rising again", "few values")


def rates(name, shape):
    """The shares of draws with five seeds in which two equal variants get the answers yes and no."""
    rule, rng, verdicts = RULES[name], np.random.default_rng([7, SHAPES.index(shape)]), []
    for _ in range(DRAWS):
        roles = [[made(role.variant, curve(shape, rng), seed) for seed in range(ENOUGH_SEEDS)]
                 for role in rule.roles]
        verdicts.append(rule.judge(roles).holds)
    return verdicts.count(True) / DRAWS, verdicts.count(False) / DRAWS


def test_the_rules_are_wrong_about_equal_variants_as_rarely_as_the_page_says():
    """The most of any shape. That equal variants are alike, and that none is at 60 % of the other, is no error."""
    page = (Path(__file__).parents[2] / "duoln/docs/paper.md").read_text(encoding="utf-8")
    for name in ("better", "sooner", "earlier", "less_sensitive"):
        holds, fails = map(max, zip(*(rates(name, shape) for shape in SHAPES), strict=True))
        assert max(holds, fails) <= 0.05 and f"| `{name}` | {holds:.1%} | {fails:.1%} |" in page, (name, holds, fails)
    for name, which in (("sooner, share", 0), ("alike", 1)):
        assert max(rates(name, shape)[which] for shape in SHAPES[:3]) <= 0.05


# Findings ----------------------------------------------------------------------------------------------------

def _statement(error, limit=1e-9, where="eq. 8", text="KL is short"):
    return {"where": where, "text": text, "error": error, "limit": limit}


@pytest.mark.parametrize(("errors", "holds"), [((1e-12,), True), ((0.5,), False), ((1e-4,), None), ((1e-12, 0.5), False),
                                               ((1e-12, 1e-4), None), ((0.5, 1e-4), False)])
def test_statements_hold_by_their_errors(errors, holds):
    content = {"statements": [_statement(error, text=f"{k} is") for k, error in enumerate(errors)]}
    answer = rules.stated("eq. 8", *(str(k) for k in range(len(errors)))).answer(content)
    assert answer.holds is holds and [f.values for f in answer.figures] == [[e] for e in errors]


@pytest.mark.parametrize(("errors", "holds"), [((0.5, 0.2), True), ((0.5, 1e-12), False), ((0.5, 1e-4), False)])
def test_what_is_denied_holds_by_errors_that_are_no_rounding(errors, holds):
    content = {"statements": [_statement(error, text=f"{k} is") for k, error in enumerate(errors)]}
    assert rules.denied("eq. 8", "0", "1").answer(content).holds is holds


def _rates(*layers):
    return {"rates": [{"variant": "none", "layer": f"block{k}", "seed": seed, "border": border, "inside": inside}
                      for k, layer in enumerate(layers) for seed, (border, inside) in enumerate(zip(*layer, strict=True))]
            + [{"variant": "ln", "layer": "block0", "seed": 0, "border": 1.0, "inside": 0.0}]}


@pytest.mark.parametrize(("layers", "holds"), [
    ([((0.1, 0.2), (0.3, 0.4))] * 2, True), ([((0.1, 0.2), (0.3, 0.4)), ((0.5, 0.6), (0.3, 0.4))], False),
    ([((0.1, 0.2), (0.3, 0.4)), ((0.3, 0.2), (0.25, 0.4))], None)])
def test_units_at_the_border_are_on_less_often_in_every_layer(layers, holds):
    answer = rules.rarer_at_border("none").answer(_rates(*layers))
    assert answer.holds is holds and [tuple(f.values) for f in answer.figures] == [values for layer in layers for values in layer]


def _tested(*errors, norm="batch"):
    runs = [{"norm": norm, "choice": False, "errors": dict(zip(("50", "75", "200"), of_seed, strict=True))} for of_seed in errors]
    return {"solved": 0.01, "settings": {"length": 50}, "runs": [{"norm": norm, "choice": True, "errors": {"50": 9.0}}, *runs]}


@pytest.mark.parametrize(("errors", "fails", "solved"), [
    ([(0.001, 0.02, 0.3), (0.002, 0.03, None)], True, False), ([(0.001, 0.002, 0.003)] * 2, False, True),
    ([(0.001, 0.02, 0.3), (0.001, 0.002, 0.3)], None, False), ([(0.02, 0.02, 0.3), (0.001, 0.02, 0.3)], None, None)])
def test_longer_sequences_are_a_problem_or_none(errors, fails, solved):
    assert rules.solves("batch", "above").answer(_tested(*errors)).holds is fails
    assert rules.solves("batch", "below").answer(_tested(*errors)).holds is solved


def _ratios(*cells):
    return {"ratios": [{"length": length, "batch_size": size, "seed": seed, "least": least, "most": most}
                       for length, size, *seeds in cells for seed, (least, most) in enumerate(seeds)]}


@pytest.mark.parametrize(("long", "holds"), [([(5, None), (4, 4)], True), ([(1, 1), (0, 0.5)], False), ([(5, None), (2, 2)], None), ([(1, None), (5, 5)], None)])
def test_what_layer_norm_saves_grows_from_one_end_to_the_other(long, holds):
    content = _ratios((25, 2, (3, 3), (2, 2)), (50, 2, (9, 9), (9, 9)), (100, 2, *long))
    assert rules.gains_grow("length", "batch_size", "greatest").answer(content).holds is holds
    turned = {"ratios": [{**r, "length": r["batch_size"], "batch_size": r["length"]} for r in content["ratios"]]}
    opposite = {True: False, False: True, None: None}[holds]
    assert rules.gains_grow("batch_size", "length", "least").answer(turned).holds is opposite


@pytest.mark.parametrize("content", [{}, {"statements": []}, {"statements": [_statement(0.1), _statement(0.2)]},
                                     {"statements": [_statement(0.1, where="eq. 9")]}])
def test_a_statement_that_is_not_there_once_is_refused(content):
    with pytest.raises((KeyError, ValueError)):
        rules.stated("eq. 8", "KL").answer(content)


@pytest.mark.parametrize(("error", "holds"), [(0.3, True), (0.31, False)])
def test_a_bound_that_is_no_rounding(error, holds):
    rule = rules.quadratic()
    answer = rule.answer({"statements": [_statement(error, limit=0.3, text="KL is the quadratic form")]})
    assert answer.holds is holds and rule.words == "error of a tenth of a step, as a share of the step's: at most 0.3"
    assert answer.figures == [rules.Figure("error of a tenth of a step, as a share of the step's", "", [error], ".2f")]


def _effects(*ends):
    changed = [{"change": "inputs x 4", "norm": norm, "family": "gaussian", "least": least, "greatest": greatest}
               for norm, (least, greatest) in zip(("batch", "layer"), ends, strict=True)]
    return {"effects": [*changed, {"change": "inputs + 3", "norm": "layer", "family": "gaussian", "least": 9.0, "greatest": 9.0}]}


@pytest.mark.parametrize(("batch", "layer", "holds"), [
    ((1.0, 1.0), (1 - 1e-12, 1 + 1e-12), True), ((1.0, 1.0), (0.5, 1.0), False), ((1.0, 1.5), (1.0, 1.0), False),
    ((1.0, 1.0), (1.0, 1.001), None)])
def test_a_change_of_the_inputs_leaves_the_metric_or_not(batch, layer, holds):
    answer = rules.robust("inputs x 4", "batch", "layer").answer(_effects(batch, layer))
    assert answer.holds is holds and len(answer.figures) == 2


def _cell(measured, expected=True, norm="layer", transformation="dataset re-scaling"):
    return {"norm": norm, "transformation": transformation, "measured": measured, "expected": expected, "greatest": 0.25}


@pytest.mark.parametrize("measured", [True, False, None])
def test_cells_of_table_1(measured):
    content = {"cells": [_cell(measured), _cell(True, norm="batch")]}
    both = rules.unchanged(("layer", "dataset re-scaling"), ("batch", "dataset re-scaling"))
    assert both.answer(content).holds is measured
    assert rules.whole_table().answer(content).holds is measured
    answer = rules.whole_table().answer({"cells": [_cell(False, expected=False), _cell(True)]})
    assert answer.holds is True and answer.figures[0].values == [2]


@pytest.mark.parametrize(("layer", "none", "holds"), [((14, 15), (52, 50), True), ((0, 0), (9, float("inf")), True), ((20, 21), (9, 10), False), ((9, 21), (10, 22), None)])
def test_gradients_span_fewer_powers_of_ten(layer, none, holds):
    content = {"spans": [{"cell": cell, "norm": norm, "seed": seed, "span": span} for cell, spans in (("rnn", (layer, none)), ("gru", (none, layer)))
                         for norm, of_seeds in zip(("layer", "none"), spans, strict=True) for seed, span in enumerate(of_seeds)]}
    answer = rules.stable("rnn").answer(content)
    assert answer.holds is holds and not rules.stable("rnn").exact and [f.values for f in answer.figures] == [list(map(float, layer)), list(map(float, none))]


def _movements(**ours):
    """Movements of two seeds in two layers: 1 in the plain network, and as given, by layer, for each seed."""
    plain = dict.fromkeys(ours, (1.0, 1.0))
    return {"movements": [{"variant": variant, "layer": layer, "seed": seed, "means": [value, 1.0], "deviations": [0.5, 0.5 * value]}
                          for variant, layers in (("none", plain), ("both", ours)) for layer, values in layers.items()
                          for seed, value in enumerate(values)]}


@pytest.mark.parametrize(("first", "second", "holds"), [
    ((0.9, 0.8), (0.2, 0.9), True), ((0.9, 0.8), (1.1, 1.2), False), ((0.9, 0.8), (0.9, 1.2), None), ((1.5, 1.2), (0.9, 1.2), False)])
def test_every_layer_moves_less_with_every_seed(first, second, holds):
    answer = rules.moves_less("both").answer(_movements(first=first, second=second))
    assert answer.holds is holds
    assert [(f.what.split()[2], f.who) for f in answer.figures] == [(kind, layer) for kind in ("deviations", "means") for layer in ("first:", "second:")]
    assert answer.figures[2].values == pytest.approx([(value + 1) / 2 for value in first])


@pytest.mark.parametrize(("loss", "holds"), [((0.5, 0.9), True), ((0.5, 1.1), None), ((1.1, 1.2), False)])
def test_the_loss_constant_is_lower_with_every_seed(loss, holds):
    """Of two seeds: the plain network's are 4 and 1/4, with the geometric mean 1; the gradient's do not count."""
    content = {"constants": [{"variant": "none", "seed": seed, "loss": [4.0, 0.25], "gradient": [1.0, 1.0]} for seed in (0, 1)]
               + [{"variant": "both", "seed": seed, "loss": [loss[seed]] * 2, "gradient": [9.0, 9.0]} for seed in (0, 1)]}
    answer = rules.smoother("both").answer(content)
    assert answer.holds is holds and answer.figures[0].values == pytest.approx(loss)


@pytest.mark.parametrize(("both", "decoder", "holds"), [((1.1, 1.2), (1.1, 1.3), True), ((1.1, 1.2), (0.9, 0.8), False), ((1.1, 1.2), (0.9, 1.2), None)])
def test_the_shift_has_nothing_to_do_with_it_if_no_variant_moves_less(both, decoder, holds):
    of_decoder = [m | {"variant": "decoder"} for m in _movements(first=decoder)["movements"] if m["variant"] == "both"]
    content = {"movements": [*_movements(first=both)["movements"], *of_decoder]}
    rule = rules.nothing_moves_less("both, decoder")
    assert rule.answer(content).holds is holds and rule.words.startswith("of both, decoder none has")
