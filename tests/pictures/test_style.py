"""The style of pictures: one look a variant, and colours that colour-blind readers tell apart."""


import numpy as np
import pytest

from duoln.pictures import style


def test_a_variant_has_one_look_in_every_task():
    first, second = style.looks(["none", "bn", "ln"]), style.looks(["ln", "mine", "none", "other"])
    assert first["ln"] == second["ln"] and first["none"] == second["none"]
    assert len({*first.values(), *second.values()}) == 5


def test_looks_differ_without_colour():
    looks = list(style.looks(["none", "bn", "ln", "wn", "a", "b", "c", "d"]).values())
    for part in ("colour", "dashes", "marker"):
        assert len({getattr(look, part) for look in looks}) == len(looks)
    assert len({style.look(k) for k in range(20)}) == 20


def test_runs_of_one_variant_share_its_hue_and_differ():
    looks = style.run_looks(["ln", "none", "ln", "ln"], ["none", "ln"])
    assert len(set(looks)) == 4 and looks[0] == style.looks(["ln"])["ln"] and looks[1] == style.looks(["none"])["none"]
    of_ln = (looks[0], looks[2], looks[3])
    assert min(int(look.colour[5:], 16) - int(look.colour[1:3], 16) for look in of_ln) > 50
    assert len({look.marker for look in of_ln}) == len({look.dashes for look in of_ln}) == 3


def test_labels_keep_their_distance_and_their_order():
    assert style.spread([0.1, 0.5, 0.9], 0.1) == [0.1, 0.5, 0.9]
    np.testing.assert_allclose(style.spread([0.5, 0.5, 0.5], 0.1), [0.4, 0.5, 0.6])
    moved = style.spread([0.0, 0.3, 0.31, 0.32, 0.45, 0.99, 1.0], 0.1)
    assert min(np.diff(moved)) > 0.1 - 1e-9 and moved[0] == 0.0 and moved[-1] == 1.0
    np.testing.assert_allclose(style.spread([0.0, 0.0, 0.0], 0.1), [0.0, 0.1, 0.2])


def test_long_texts_are_broken_into_lines():
    lines = style.wrapped("a title that is much longer than its panel " * 2, 2.0).splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 2.0 * 72 / (style.MIDDLE * 0.5)


@pytest.mark.parametrize(("low", "high", "most", "number"), [(1e-8, 1.0, 9, "0.01"), (0.01, 0.2, 6, "0.05"), (1e-7, 0.4, 9, "0.1")])
def test_numbers_of_a_logarithmic_axis_have_room(low, high, most, number):
    from matplotlib.figure import Figure

    axes = Figure(figsize=(style.WIDTH, 4)).add_subplot(2, 1, 1)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    style.number_axis(axes.yaxis, False, True)
    places = [y for y in axes.yaxis.get_majorticklocs() if low <= y <= high]
    assert number in [axes.yaxis.get_major_formatter()(y) for y in places] and 2 < len(places) <= most
