"""The table and the picture of layers' statistics: every value, one scale for a statistic, and values that are missing."""

import csv
import math
from importlib.util import find_spec

import pytest
from runs.reading import Reading, kept_figures, made_curve

from duoln.cli.report import write_layers
from duoln.runs import norm_stats
from duoln.runs.norm_stats import LayerStats, write_table

RUNS = {"a/none": {0: {"": LayerStats(0.5, 2.0, None), "linear": LayerStats(-1.0, 0.1, 3.0)},
                   10: {"": LayerStats(0.25, 30.0, None), "linear": LayerStats(1.0, math.nan, 0.0)}},
        "a/ln": {0: {"norm.0": LayerStats(None, None, 0.5)}}}
drawing = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


def test_the_table_has_a_line_for_each_layer_and_update(tmp_path):
    path = write_table({name: (name[2:], stats) for name, stats in RUNS.items()}, tmp_path / "t.csv")
    assert list(csv.reader(path.read_text().splitlines())) == [
        ["run", "variant", "update", "layer", "mean", "variance", "gradient_norm"],
        ["a/none", "none", "0", "(model)", "0.5", "2.0", ""], ["a/none", "none", "0", "linear", "-1.0", "0.1", "3.0"],
        ["a/none", "none", "10", "(model)", "0.25", "30.0", ""], ["a/none", "none", "10", "linear", "1.0", "nan", "0.0"],
        ["a/ln", "ln", "0", "norm.0", "", "", "0.5"]]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws some statistics, and returns the figure and the axes."""
    from matplotlib import pyplot

    kept = kept_figures(monkeypatch, norm_stats)

    def draw(runs):
        norm_stats.draw("a title", runs, tmp_path / "a.png")
        return kept.pop()

    yield draw
    pyplot.close("all")


@drawing
def test_a_panel_for_each_statistic_and_run_and_a_line_for_each_layer(drawn):
    whole, grid = drawn(RUNS)
    assert grid.shape == (3, 2) and [axes.get_title(loc="left") for axes in grid[0]] == ["a/none", "a/ln"]
    points = [[[tuple(zip(*line.get_data(), strict=True)) for line in axes.get_lines() if len(line.get_data()[0])] for axes in row] for row in grid]
    assert points == [[[((0, 0.5), (10, 0.25)), ((0, -1.0), (10, 1.0))], []],
                      [[((0, 2.0), (10, 30.0)), ((0, 0.1),)], []],
                      [[((0, 3.0), (10, 0.0))], [((0, 0.5),)]]], "what is missing or not finite is not drawn"
    [legend] = whole.legends
    assert [text.get_text() for text in legend.get_texts()] == ["(model)", "linear", "norm.0"]
    colours = {line.get_label(): line.get_color() for line in legend.get_lines()}
    assert grid[2][0].get_lines()[0].get_color() == colours["linear"] and grid[2][1].get_lines()[0].get_color() == colours["norm.0"]


@drawing
def test_scales(drawn):
    _, grid = drawn(RUNS)
    assert [row[0].get_yscale() for row in grid] == ["linear", "log", "linear"], "gradients span less than ten"
    wide = {"a": {0: {"x": LayerStats(1.0, 1.0, 1.0), "y": LayerStats(100.0, 2.0, 0.0), "z": LayerStats(1.0, 2.0, 1e-3)}}}
    _, grid = drawn(wide)
    assert [row[0].get_yscale() for row in grid] == ["linear", "linear", "symlog"], "a gradient of 0 is seen"
    _, grid = drawn({"a": {0: {"x": LayerStats(math.nan, math.nan, None)}}})
    assert [row[0].get_yscale() for row in grid] == ["linear"] * 3


@pytest.mark.long
@drawing
@pytest.mark.parametrize(("layers", "updates"), [(1, 1), (30, 2), (3, 500)])
def test_it_is_written_for_any_number_of_layers(tmp_path, layers, updates):
    stats = {k: {f"$layer_{n}": LayerStats(n, n + k, 10.0 ** (n - k % 3)) for n in range(layers)} for k in range(updates)}
    assert norm_stats.draw("a $title", {"a": stats}, tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.long
@drawing
def test_runs_without_statistics_are_left_out_and_many_have_several_pictures(tmp_path):
    plain = made_curve(tmp_path / "plain", "ln")
    assert write_layers(Reading(), [plain], tmp_path) == []
    watched = [made_curve(tmp_path / f"r{k}" / variant, variant)._replace(layers=RUNS["a/none"]) for k in range(3) for variant in ("ln", "none")]
    written = write_layers(Reading(), [plain, *watched[:4]], tmp_path)
    assert [path.name for path in written] == ["norm_stats.csv", "norm_stats.png"]
    written = write_layers(Reading(), [plain, *watched], tmp_path)
    assert [path.name for path in written] == ["norm_stats.csv", "norm_stats.png", "norm_stats-2.png"] and all(path.is_file() for path in written)
    names = list(dict.fromkeys(line.split(",")[0] for line in written[0].read_text().splitlines()[1:]))
    assert names == ["r0/none", "r1/none", "r2/none", "r0/ln", "r1/ln", "r2/ln"], "as the task orders its variants"
