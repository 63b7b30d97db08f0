"""The rules that decide a claim from what `duoln analyze` found."""

import pytest

from duoln.plugins.paper.findings import (
    denied,
    gains_grow,
    moves_less,
    nothing_moves_less,
    rarer_at_border,
    robust,
    smoother,
    solves,
    stable,
    stated,
    unchanged,
    whole_table,
)


def _statement(error, limit=1e-9, where="eq. 8", text="KL is short"):
    return {"where": where, "text": text, "error": error, "limit": limit}


@pytest.mark.parametrize(("errors", "holds"), [((1e-12,), True), ((0.5,), False), ((1e-4,), None), ((1e-12, 0.5), False),
                                               ((1e-12, 1e-4), None), ((0.5, 1e-4), False)])
def test_statements_hold_by_their_errors(errors, holds):
    content = {"statements": [_statement(error, text=f"{k} is") for k, error in enumerate(errors)]}
    answer = stated("eq. 8", *(str(k) for k in range(len(errors)))).answer(content)
    assert answer.holds is holds and [f.values for f in answer.figures] == [[e] for e in errors]


@pytest.mark.parametrize(("errors", "holds"), [((0.5, 0.2), True), ((0.5, 1e-12), False), ((0.5, 1e-4), False)])
def test_what_is_denied_holds_by_errors_that_are_no_rounding(errors, holds):
    content = {"statements": [_statement(error, text=f"{k} is") for k, error in enumerate(errors)]}
    assert denied("eq. 8", "0", "1").answer(content).holds is holds


def _rates(*layers):
    return {"rates": [{"variant": "none", "layer": f"block{k}", "seed": seed, "border": border, "inside": inside}
                      for k, layer in enumerate(layers) for seed, (border, inside) in enumerate(zip(*layer, strict=True))]
            + [{"variant": "ln", "layer": "block0", "seed": 0, "border": 1.0, "inside": 0.0}]}


@pytest.mark.parametrize(("layers", "holds"), [
    ([((0.1, 0.2), (0.3, 0.4))] * 2, True), ([((0.1, 0.2), (0.3, 0.4)), ((0.5, 0.6), (0.3, 0.4))], False),
    ([((0.1, 0.2), (0.3, 0.4)), ((0.3, 0.2), (0.25, 0.4))], None)])
def test_units_at_the_border_are_on_less_often_in_every_layer(layers, holds):
    answer = rarer_at_border("none").answer(_rates(*layers))
    assert answer.holds is holds and [f.values for f in answer.figures] == [values for layer in layers for values in layer]


def _tested(*errors, norm="batch"):
    runs = [{"norm": norm, "choice": False, "errors": dict(zip(("50", "75", "200"), of_seed, strict=True))} for of_seed in errors]
    return {"solved": 0.01, "settings": {"length": 50}, "runs": [{"norm": norm, "choice": True, "errors": {"50": 9.0}}, *runs]}


@pytest.mark.parametrize(("errors", "fails", "solved"), [
    ([(0.001, 0.02, 0.3), (0.002, 0.03, None)], True, False), ([(0.001, 0.002, 0.003)] * 2, False, True),
    ([(0.001, 0.02, 0.3), (0.001, 0.002, 0.3)], None, False), ([(0.02, 0.02, 0.3), (0.001, 0.02, 0.3)], None, None)])
def test_longer_sequences_are_a_problem_or_none(errors, fails, solved):
    assert solves("batch", False).answer(_tested(*errors)).holds is fails
    assert solves("batch", True).answer(_tested(*errors)).holds is solved


def _ratios(*cells):
    return {"ratios": [{"length": length, "batch_size": size, "seed": seed, "least": least, "most": most}
                       for length, size, *seeds in cells for seed, (least, most) in enumerate(seeds)]}


@pytest.mark.parametrize(("long", "holds"), [([(5, None), (4, 4)], True), ([(1, 1), (0, 0.5)], False), ([(5, None), (2, 2)], None), ([(1, None), (5, 5)], None)])
def test_what_layer_norm_saves_grows_from_one_end_to_the_other(long, holds):
    content = _ratios((25, 2, (3, 3), (2, 2)), (50, 2, (9, 9), (9, 9)), (100, 2, *long))
    assert gains_grow("length", "batch_size", max).answer(content).holds is holds
    turned = {"ratios": [{**r, "length": r["batch_size"], "batch_size": r["length"]} for r in content["ratios"]]}
    opposite = {True: False, False: True, None: None}[holds]
    assert gains_grow("batch_size", "length", min).answer(turned).holds is opposite


def test_a_limit_of_a_statement_counts_before_the_bound_of_wrong():
    assert stated("eq. 8", "KL").answer({"statements": [_statement(0.1, limit=0.3)]}).holds is True


@pytest.mark.parametrize("content", [{}, {"statements": []}, {"statements": [_statement(0.1), _statement(0.2)]},
                                     {"statements": [_statement(0.1, where="eq. 9")]}])
def test_a_statement_that_is_not_there_once_is_refused(content):
    with pytest.raises((KeyError, ValueError)):
        stated("eq. 8", "KL").answer(content)


@pytest.mark.parametrize(("error", "holds"), [(0.3, True), (0.31, False)])
def test_a_bound_that_is_no_rounding(error, holds):
    rule = stated("eq. 8", "KL", heading="share", bound=0.3)
    answer = rule.answer({"statements": [_statement(error, limit=0.3)]})
    assert answer.holds is holds and "0.3" in rule.words and (answer.figures[0].what, answer.figures[0].values) == ("share", [error])


def _effects(*ends):
    changed = [{"change": "inputs x 4", "norm": norm, "family": "gaussian", "least": least, "greatest": greatest}
               for norm, (least, greatest) in zip(("batch", "layer"), ends, strict=True)]
    return {"effects": [*changed, {"change": "inputs + 3", "norm": "layer", "family": "gaussian", "least": 9.0, "greatest": 9.0}]}


@pytest.mark.parametrize(("batch", "layer", "holds"), [
    ((1.0, 1.0), (1 - 1e-12, 1 + 1e-12), True), ((1.0, 1.0), (0.5, 1.0), False), ((1.0, 1.5), (1.0, 1.0), False),
    ((1.0, 1.0), (1.0, 1.001), None)])
def test_a_change_of_the_inputs_leaves_the_metric_or_not(batch, layer, holds):
    answer = robust("inputs x 4", "batch", "layer").answer(_effects(batch, layer))
    assert answer.holds is holds and len(answer.figures) == 2


def _cell(measured, expected=True, norm="layer", transformation="dataset re-scaling"):
    return {"norm": norm, "transformation": transformation, "measured": measured, "expected": expected, "greatest": 0.25}


@pytest.mark.parametrize("measured", [True, False, None])
def test_cells_of_table_1(measured):
    content = {"cells": [_cell(measured), _cell(True, norm="batch")]}
    both = unchanged(("layer", "dataset re-scaling"), ("batch", "dataset re-scaling"))
    assert both.answer(content).holds is measured
    assert whole_table().answer(content).holds is measured


def test_the_table_may_say_that_an_output_changes():
    answer = whole_table().answer({"cells": [_cell(False, expected=False), _cell(True)]})
    assert answer.holds is True and answer.figures[0].values == [2]


@pytest.mark.parametrize(("layer", "none", "holds"), [((14, 15), (52, 50), True), ((0, 0), (9, float("inf")), True), ((20, 21), (9, 10), False), ((9, 21), (10, 22), None)])
def test_gradients_span_fewer_powers_of_ten(layer, none, holds):
    content = {"spans": [{"cell": cell, "norm": norm, "seed": seed, "span": span} for cell, spans in (("rnn", (layer, none)), ("gru", (none, layer)))
                         for norm, of_seeds in zip(("layer", "none"), spans, strict=True) for seed, span in enumerate(of_seeds)]}
    answer = stable("rnn").answer(content)
    assert answer.holds is holds and not stable("rnn").exact and [f.values for f in answer.figures] == [list(map(float, layer)), list(map(float, none))]


def _movements(**ours):
    """Movements of two seeds in two layers: 1 in the plain network, and as given, by layer, for each seed."""
    plain = dict.fromkeys(ours, (1.0, 1.0))
    return {"movements": [{"variant": variant, "layer": layer, "seed": seed, "means": [value, 1.0], "deviations": [0.5, 0.5 * value]}
                          for variant, layers in (("none", plain), ("both", ours)) for layer, values in layers.items()
                          for seed, value in enumerate(values)]}


@pytest.mark.parametrize(("first", "second", "holds"), [
    ((0.9, 0.8), (0.2, 0.9), True), ((0.9, 0.8), (1.1, 1.2), False), ((0.9, 0.8), (0.9, 1.2), None), ((1.5, 1.2), (0.9, 1.2), False)])
def test_every_layer_moves_less_with_every_seed(first, second, holds):
    answer = moves_less("both").answer(_movements(first=first, second=second))
    assert answer.holds is holds
    assert [(f.what.split()[2], f.who) for f in answer.figures] == [(kind, layer) for kind in ("deviations", "means") for layer in ("first:", "second:")]
    assert answer.figures[2].values == pytest.approx([(value + 1) / 2 for value in first])


@pytest.mark.parametrize(("loss", "holds"), [((0.5, 0.9), True), ((0.5, 1.1), None), ((1.1, 1.2), False)])
def test_the_loss_constant_is_lower_with_every_seed(loss, holds):
    """Of two seeds: the plain network's are 4 and 1/4, with the geometric mean 1; the gradient's do not count."""
    content = {"constants": [{"variant": "none", "seed": seed, "loss": [4.0, 0.25], "gradient": [1.0, 1.0]} for seed in (0, 1)]
               + [{"variant": "both", "seed": seed, "loss": [loss[seed]] * 2, "gradient": [9.0, 9.0]} for seed in (0, 1)]}
    answer = smoother("both").answer(content)
    assert answer.holds is holds and answer.figures[0].values == pytest.approx(loss)


@pytest.mark.parametrize(("both", "decoder", "holds"), [((1.1, 1.2), (1.1, 1.3), True), ((1.1, 1.2), (0.9, 0.8), False), ((1.1, 1.2), (0.9, 1.2), None)])
def test_the_shift_has_nothing_to_do_with_it_if_no_variant_moves_less(both, decoder, holds):
    of_decoder = [m | {"variant": "decoder"} for m in _movements(first=decoder)["movements"] if m["variant"] == "both"]
    content = {"movements": [*_movements(first=both)["movements"], *of_decoder]}
    assert nothing_moves_less("both", "decoder").answer(content).holds is holds
