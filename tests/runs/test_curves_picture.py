"""The picture of curves: every run, levels that need no training, the paper's curves beside ours."""

import math
from importlib.util import find_spec
from itertools import pairwise

import pytest
from runs.reading import Reading, kept_figures, made_curve

from duoln.pictures import style
from duoln.runs import curves_picture
from duoln.runs.series import series_of
from duoln.tasks.values import split_columns

pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


def test_columns_and_levels():
    own, levels = split_columns(Reading.columns)
    assert [c.key for c in own] == ["valid_error", "test_error"] and [c.key for c in levels] == ["chance"]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws some runs, and returns the axes."""
    from matplotlib import pyplot

    kept = kept_figures(monkeypatch, curves_picture)

    def draw(runs, by="run"):
        curves_picture.draw(Reading(), series_of(Reading(), runs, by), tmp_path / "a.png")
        return kept.pop()[1]

    yield draw
    pyplot.close("all")


def _look(line):
    return line.get_color(), line.get_linestyle(), line.get_marker()


@pytest.mark.long
def test_the_title_of_the_papers_panel_is_not_cut_off_beside_names_at_the_ends_of_lines(drawn, tmp_path, monkeypatch):
    from matplotlib import pyplot

    monkeypatch.setattr(Reading, "paper", "section 6.2, figure 2")
    runs = [made_curve(tmp_path / f"runs-of-the-day-{k}" / "ln", "ln") for k in range(5)]
    published = drawn(runs)[1][1]
    whole = published.figure
    whole.tight_layout()
    whole.canvas.draw()
    titles = [text for text in (published.title, published._left_title) if text.get_text()]
    assert titles and all(text.get_window_extent().x1 <= whole.bbox.x1 for text in titles)
    pyplot.close(whole)


def test_panels(drawn, tmp_path):
    axes = drawn([made_curve(tmp_path / "ln", "ln"), made_curve(tmp_path / "none", "none")])
    assert axes.shape == (3, 2)  # loss, valid and test error; ours and the paper's
    valid, published = axes[1]
    lines = {line.get_label(): line for line in valid.get_lines()}
    assert list(lines) == ["none", "ln", "by chance"] and set(lines["by chance"].get_ydata()) == {0.75}
    assert list(lines["none"].get_ydata()) == [0.1, 0.05]
    [theirs] = published.get_lines()
    assert list(theirs.get_xdata()) == [1000, 2000] and list(theirs.get_ydata()) == [0.9, 0.5]
    assert _look(theirs) == _look(lines["none"]) != _look(lines["ln"])
    assert lines["ln"].get_color() == style.looks(["ln"])["ln"].colour
    assert [a.get_visible() for a in axes[:, 1]] == [False, True, False]


def test_two_runs_of_a_variant_are_two_lines(drawn, tmp_path):
    axes = drawn([made_curve(tmp_path / "a" / "ln", "ln", learning_rate=0.1),
                  made_curve(tmp_path / "b" / "ln", "ln", 3.0, learning_rate=0.2)])
    first, second = axes[2][0].get_lines()
    assert [line.get_label() for line in (first, second)] == ["ln, learning_rate 0.1 (a)", "ln, learning_rate 0.2 (b)"]
    assert list(first.get_ydata()) == [0.2, 0.1] and list(second.get_ydata()) == [0.6, 0.3]
    assert _look(first) != _look(second)


def test_seeds_are_a_band_around_their_median(drawn, tmp_path):
    axes = drawn([made_curve(tmp_path / str(k) / "ln", "ln", scale, seed=k) for k, scale in enumerate((1.0, 5.0, 2.0))], "seed")
    [line], [band] = axes[2][0].get_lines(), axes[2][0].collections
    assert list(line.get_ydata()) == [0.4, 0.2]
    assert {y for _, y in band.get_paths()[0].vertices} == {0.2, 1.0, 0.1, 0.5}


def test_more_than_three_lines_are_named_at_their_ends(drawn, tmp_path):
    for count in (3, 4):
        axes = drawn([made_curve(tmp_path / str(k) / "ln", "ln", 1 + k / 99, seed=k) for k in range(count)])
        assert (axes[0][0].get_legend() is None) == (count == 4)
        labels = [text for text in axes[2][0].texts if text.get_text()]
        assert len(labels) == (4 if count == 4 else 0)
    heights = sorted(text.get_position()[1] for text in labels)
    assert min(b - a for a, b in pairwise(heights)) > 0.05


@pytest.mark.parametrize(("epochs", "marks"), [((1, 2), [1, 2]), ((0.25, 0.5), [0.25, 0.5])])
def test_an_axis_of_epochs_has_no_tick_at_a_part_of_one(drawn, tmp_path, monkeypatch, epochs, marks):
    monkeypatch.setattr(Reading, "x_axis", "epoch")
    run = made_curve(tmp_path / "ln", "ln")
    for point, epoch in zip(run.points, epochs, strict=True):
        point["epoch"] = epoch
    axes = drawn([run])[1][0]
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert set(marks) <= {round(tick, 9) for tick in ticks} and (ticks == marks or epochs[-1] < 1)


def test_percent_where_the_table_has_percent(drawn, tmp_path):
    axes = drawn([made_curve(tmp_path / "ln", "ln")])
    assert axes[1][0].yaxis.get_major_formatter()(0.25, 0) == "25%"
    assert "%" not in axes[2][0].yaxis.get_major_formatter()(0.25, 0)


def test_seeds_on_two_datasets_are_two_lines(drawn, tmp_path):
    runs = [made_curve(tmp_path / "a", "ln"), made_curve(tmp_path / "b", "ln", 3.0)]
    runs[1] = runs[1]._replace(dataset=runs[1].dataset._replace(name="others"))
    axes = drawn(runs, "seed")
    assert [line.get_label() for line in axes[2][0].get_lines()] == ["ln", "ln #2"]
    assert [list(line.get_ydata()) for line in axes[2][0].get_lines()] == [[0.2, 0.1], [0.6, 0.3]]


@pytest.mark.few
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_run_that_ends_in_what_is_no_number_costs_no_picture(bad, drawn, tmp_path):
    runs = [made_curve(tmp_path / str(k) / "ln", "ln", seed=k) for k in range(5)]
    for run, places in ((runs[2], slice(1, None)), (runs[3], slice(None))):
        for point in run.points[places]:
            point.update(dict.fromkeys(("valid_error", "test_error", "chance"), bad))
    axes = drawn(runs)
    axes[0][0].figure.canvas.draw()
    labels = {text.get_text() for text in axes[2][0].texts if text.get_text()}
    assert labels == {"ln, seed 0 (0)", "ln, seed 1 (1)", f"ln, seed 2 (2), then {bad:g}", "ln, seed 4 (4)"}  # no line of seed 3
    assert [len(line.get_ydata()) for line in axes[2][0].get_lines()] == [2] * 5


def test_the_axis_does_not_hang_on_where_a_nan_stands(drawn, tmp_path):
    scales = []
    for bad in range(3):
        runs = [made_curve(tmp_path / str(k) / "ln", "ln", 100.0 ** k, seed=k) for k in range(3)]
        runs[bad].points[0]["test_error"] = math.nan
        scales.append(drawn(runs)[2][0].get_yscale())
    assert scales == ["log"] * 3
