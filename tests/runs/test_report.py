"""The picture of curves: levels that need no training, and the paper's curves beside ours."""

from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from duoln.cli import console
from duoln.runs import report
from duoln.tasks import Column, Dataset, ReferenceCurve, Task
from duoln.tasks.values import split_columns


class Reading(Task):
    """A task that has both."""

    name, title, paper = "reading", "Reading", "figure 2"
    variants = {"none": {}, "ln": {}}  # noqa: RUF012
    references = {"none": "0.1"}  # noqa: RUF012
    columns = (Column("valid_error", "valid error", level="chance"), Column("test_error", "test error"),
               Column("chance", "by chance", ".2f"))
    x_axis = "step"

    def reference_curves(self):
        return [ReferenceCurve("valid_error", "none", [(1000, 0.9), (2000, 0.5)])]


def _curve(tmp_path, variant, batch=8):
    points = [{"step": k, "epoch": k / 10, "wall_s": 0.1, "valid_error": 1 / k, "test_error": 2 / k, "chance": 0.75}
              for k in (10, 20)]
    return report.Curve(tmp_path / variant, "reading", variant, {"batch_size": batch}, Dataset("made", "synthetic"), points,
                        [(k, 1.0 / k) for k in range(1, 21)], {})


def test_columns_and_levels():
    own, levels = split_columns(Reading.columns)
    assert [c.key for c in own] == ["valid_error", "test_error"] and [c.key for c in levels] == ["chance"]


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_panels(tmp_path, monkeypatch):
    from matplotlib import pyplot
    from matplotlib.colors import to_rgba

    kept = []

    @contextmanager
    def keeping(target, rows, columns, size, **grid):
        drawn, axes = pyplot.subplots(rows, columns, squeeze=False, **grid)
        kept.append(axes)
        yield drawn, axes

    monkeypatch.setattr(report, "figure", keeping)
    report.draw(Reading(), [_curve(tmp_path, "ln"), _curve(tmp_path, "none")], tmp_path / "a.png")
    [axes] = kept
    assert axes.shape == (3, 2)  # loss, valid and test error; ours and the paper's
    valid, published = axes[1]
    lines = {line.get_label(): line for line in valid.get_lines()}
    assert list(lines) == ["ln", "none", "by chance"] and set(lines["by chance"].get_ydata()) == {0.75}
    assert list(lines["none"].get_ydata()) == [0.1, 0.05]
    [theirs] = published.get_lines()
    assert list(theirs.get_xdata()) == [1000, 2000] and list(theirs.get_ydata()) == [0.9, 0.5]
    assert to_rgba(theirs.get_color()) == to_rgba(lines["none"].get_color()) != to_rgba(lines["ln"].get_color())
    assert [a.get_visible() for a in axes[:, 1]] == [False, True, False]
    pyplot.close("all")


def test_levels_stand_once_below_the_table(capsys):
    result = {"variant": "ln", "steps": 20, "batch_size": 8, "epochs": 1, "valid_error": 0.5, "test_error": 0.25, "chance": 0.75,
              "seconds_per_epoch": 1.0}
    console.show_results(Reading(), Dataset("made", "synthetic"), [result, {**result, "variant": "none"}])
    stderr = capsys.readouterr().err
    assert stderr.count("by chance") == 1 and "by chance 0.75" in stderr and stderr.count("0.2500") == 2


def test_a_table_too_wide_for_the_terminal_lies_on_its_side(capsys, monkeypatch):
    result = {"variant": "ln", "steps": 20, "batch_size": 8, "epochs": 1, "valid_error": 0.5, "test_error": 0.25, "chance": 0.75,
              "seconds_per_epoch": 1.0}
    monkeypatch.setattr(console.talk, "width", 60)
    console.show_results(Reading(), Dataset("made", "synthetic"), [result, {**result, "variant": "none", "test_error": 0.125}])
    upright = capsys.readouterr().err
    monkeypatch.setattr(console.talk, "width", 40)
    console.show_results(Reading(), Dataset("made", "synthetic"), [result, {**result, "variant": "none", "test_error": 0.125}])
    turned = capsys.readouterr().err
    assert "…" not in upright + turned
    [line] = [line for line in turned.splitlines() if "test error" in line]
    assert line.index("0.2500") < line.index("0.1250") and "the paper on none" in turned
