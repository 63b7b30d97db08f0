"""The page of a report: one file that loads nothing, and that no name of a file or setting can change."""

import base64
import re
from html.parser import HTMLParser

import pytest
from runs.reading import Reading, made_curve

from duoln.cli import console
from duoln.pictures import drawing
from duoln.runs import html
from duoln.runs.curves_picture import draw
from duoln.runs.page import Part, write_page
from duoln.runs.series import series_of

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&<!--\u2028\x1b[31m"


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def _page(path, runs, by="run"):
    text = write_page([Part(Reading(), series_of(Reading(), runs, by))], path / "page.html", console.number).read_text()
    parser = _Tags()
    parser.feed(text)
    return text, parser


@pytest.fixture
def runs(tmp_path):
    return [made_curve(tmp_path / "a" / "ln", "ln", rate=0.1), made_curve(tmp_path / "b" / "ln", "ln", 4.0, rate=0.2)]


@pytest.mark.long
def test_runs_settings_and_figures_are_in_it(tmp_path, runs):
    _, parser = _page(tmp_path, runs)
    for words in ("ln, rate 0.1 (a)", "* rate", "made, synthetic", "figure 2", "valid error", "5.00%"):
        assert words in parser.text, words


@pytest.mark.long
def test_the_curves_are_a_picture_in_it(tmp_path, runs):
    pytest.importorskip("matplotlib")
    _, parser = _page(tmp_path, runs)
    [source] = [attrs["src"] for tag, attrs in parser.tags if tag == "img"]
    form, _, data = source.partition(",")
    assert form == "data:image/png;base64" and base64.b64decode(data) == draw(Reading(), series_of(Reading(), runs), tmp_path / "a.png").read_bytes()


def test_without_matplotlib_it_says_what_draws_the_curves(tmp_path, runs, monkeypatch):
    monkeypatch.setattr(drawing, "refusal", lambda: "pip install matplotlib")
    text, parser = _page(tmp_path, runs)
    assert "<img" not in text and "No curves: pip install matplotlib" in parser.text


@pytest.mark.long
def test_a_run_that_is_left_out_is_named(tmp_path, runs):
    _, parser = _page(tmp_path, [runs[0], runs[0]._replace(path=tmp_path / "newer" / "ln")], "seed")
    assert f"{runs[0].path} is left out: a newer run has seed 0 of ln" in parser.text


@pytest.mark.long
def test_numbers_stand_to_the_right_and_a_column_has_the_time(tmp_path, runs):
    text, _ = _page(tmp_path, runs)
    [head] = re.findall(r"<h2>Results</h2>.*?<tr>(.*?)</tr>", text, re.DOTALL)
    assert '<th class="figures">ms/update</th>' in head and '<th class="figures">test error</th>' in head
    assert "<th>variant</th>" in head and head.count("epochs") == 1


@pytest.mark.parametrize(("cells", "right"), [
    (["1.5", "2"], True), (["49.38%\n43.35%-52.42%\n1 NaN"], True), (["1e-05", "-", "-inf"], True), (["", "3"], True),
    (["1", "ln"], False), (["1.2.3 x"], False), (["1" * 5000 + "x"], False)])
def test_what_is_a_column_of_numbers(cells, right):
    [row] = re.findall(r"<tr>(<th.*?)</tr>", "".join(html.table(["a"], [[cell] for cell in cells])))
    assert ("figures" in row) == right


@pytest.mark.long
def test_it_loads_nothing_and_runs_no_script(tmp_path, runs):
    text, parser = _page(tmp_path, runs)
    assert not re.search(r"(?:src|href)\s*=(?!\"data:image/png;base64,)|url\(|@import|https?://|<script", text)
    [policy] = [attrs["content"] for tag, attrs in parser.tags if tag == "meta" and "content" in attrs and "src" in attrs["content"]]
    assert policy.startswith("default-src 'none'") and "script-src" not in policy


@pytest.mark.long
def test_hostile_names_stay_text(tmp_path, runs):
    hostile = runs[0]._replace(variant=HOSTILE, config={**runs[0].config, HOSTILE: HOSTILE},
                               dataset=runs[0].dataset._replace(name=HOSTILE))
    _, before = _page(tmp_path, runs)
    text, parser = _page(tmp_path, [hostile, runs[1]])
    assert "<img src=x" not in text and "\x1b" not in text and "\u2028" not in text
    assert {tag for tag, _ in parser.tags} == {tag for tag, _ in before.tags}
    assert "onerror=alert(1)" in parser.text
