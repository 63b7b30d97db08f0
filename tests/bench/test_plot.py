"""The picture of a comparison: bars with the spread of their samples, a panel for each operator, times with units."""

import json
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from bench import made

from duoln.bench import plot
from duoln.bench.compare import compare

pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    from matplotlib import pyplot

    kept = []

    @contextmanager
    def keeping(target, rows, size, top, **grid):
        whole, axes = pyplot.subplots(rows, 1, squeeze=False, figsize=size, **grid)
        kept.append((whole, axes[:, 0], size))
        yield whole, axes

    monkeypatch.setattr(plot, "figure", keeping)

    def draw(*records):
        paths = [tmp_path / f"{k}.json" for k in range(len(records))]
        for path, record in zip(paths, records, strict=True):
            path.write_text(json.dumps(record))
        plot.draw(compare(paths), tmp_path / "p.png")
        return kept.pop()

    yield draw
    pyplot.close("all")


_OTHER = {"op": "softmax_cross_entropy"}


def test_bars_have_the_spread_of_their_samples(drawn):
    _, [axes], _ = drawn(made.record(), made.record({"p10": 1e-3, "p90": 5e-3}))
    first, second = [container for container in axes.containers if hasattr(container, "errorbar")]
    assert [bar.get_width() for container in (first, second) for bar in container] == [2e-3, 2e-3]
    [segment] = second.errorbar.lines[2][0].get_segments()
    assert sorted(segment[:, 0]) == pytest.approx([1e-3, 5e-3])
    assert first[0].get_facecolor() != second[0].get_facecolor() and first[0].get_hatch() != second[0].get_hatch()


def test_each_operator_has_a_panel_and_the_picture_grows(drawn):
    _, few, small = drawn(made.record({}), made.record({}))
    cases = [{}, _OTHER, {**_OTHER, "shape": [9, 9]}]
    _, axes, large = drawn(made.record(*cases), made.record(*cases))
    assert len(few) == 1 and [a.get_title(loc="left") for a in axes] == ["layer_norm", "softmax_cross_entropy"]
    assert large[1] > 1.5 * small[1] and large[0] == small[0]


def test_times_have_units(drawn):
    _, [axes], _ = drawn(made.record(), made.record())
    assert [axes.xaxis.get_major_formatter()(t, 0) for t in (1e-5, 1e-3, 0.1)] == ["10 us", "1 ms", "100 ms"]


def test_records_of_one_label_are_told_apart_by_their_files(drawn):
    whole, _, _ = drawn(made.record({}, label="here"), made.record({}, label="here"), made.record({}, label="there"))
    assert [text.get_text() for text in whole.legends[0].get_texts()] == ["#1 here (0.json)", "#2 here (1.json)", "#3 there"]


def test_a_file_without_the_first_operator_is_in_the_legend(drawn):
    whole, _, _ = drawn(made.record({}, _OTHER, label="both"), made.record(_OTHER, label="one"), made.record(label="first"))
    whole.canvas.draw()
    assert [text.get_text() for text in whole.legends[0].get_texts()] == ["#1 both", "#2 one", "#3 first"]
