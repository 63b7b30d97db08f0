"""The style of pictures: one look a variant, and colours that colour-blind readers tell apart."""

import itertools

import numpy as np
import pytest

from duoln.pictures import style

# Simulations for linear RGB: Machado, Oliveira and Fernandes, 2009, severity 1.
_SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
}
_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
_LEAST = 20.0
"""CIE 1976 colour difference; 2 to 3 are just seen side by side."""


def _lab(colour, sight):
    encoded = np.array([int(colour[k:k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(_XYZ @ np.clip(_SIGHT[sight] @ linear, 1e-3, 1) / (0.95047, 1.0, 1.08883))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def _distance(first, second, sight):
    return float(np.linalg.norm(_lab(first, sight) - _lab(second, sight)))


@pytest.mark.parametrize("sight", _SIGHT)
def test_any_two_colours_are_told_apart(sight):
    near = {pair: _distance(*pair, sight) for pair in itertools.combinations(style.COLOURS, 2)}
    assert min(near.values()) > _LEAST, min(near.items(), key=lambda item: item[1])
    assert all(_distance(colour, "#FFFFFF", sight) > _LEAST for colour in style.COLOURS)


def test_the_simulation_finds_red_and_green_alike():
    assert _distance("#D62728", "#2CA02C", "normal") > 3 * _distance("#D62728", "#2CA02C", "deuteranopia")
    assert _distance("#D62728", "#7F6A00", "deuteranopia") < _LEAST < _distance("#D62728", "#7F6A00", "normal")


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


@pytest.mark.parametrize("sight", _SIGHT)
@pytest.mark.parametrize(("count", "least"), [(2, 40.0), (3, 20.0), (4, 15.0), (5, 12.0)])
def test_runs_of_one_variant_are_told_apart_by_colour(sight, count, least):
    for variant in range(len(style.COLOURS)):
        colours = [look.colour for look in style.shades(style.look(variant), count)]
        assert min(_distance(*pair, sight) for pair in itertools.combinations(colours, 2)) > least, colours
        assert all(_distance(colour, "#FFFFFF", sight) > _LEAST for colour in colours)
        assert colours[0] == style.COLOURS[variant]


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
