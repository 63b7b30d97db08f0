"""The page of a report: one file that loads nothing, and that no name of a file or setting can change."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from conftest import PATIENCE
from runs.reading import Reading, made_curve

from duoln.cli import console
from duoln.runs import html
from duoln.runs.page import Part, write_page
from duoln.runs.series import series_of

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&<!--\u2028\x1b[31m"


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text, self.scripts, self.inside = [], "", [], False

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data
        self.text += data


def _page(path, runs, by="run"):
    text = write_page([Part(Reading(), series_of(Reading(), runs, by))], path / "page.html", console.number).read_text()
    parser = _Tags()
    parser.feed(text)
    return text, parser


@pytest.fixture
def runs(tmp_path):
    return [made_curve(tmp_path / "a" / "ln", "ln", rate=0.1), made_curve(tmp_path / "b" / "ln", "ln", 4.0, rate=0.2)]


def test_runs_settings_and_figures_are_in_it(tmp_path, runs):
    _, parser = _page(tmp_path, runs)
    for words in ("ln, rate 0.1 (a)", "* rate", "made, synthetic", "figure 2", "valid error", "5.00%"):
        assert words in parser.text, words
    data = json.loads(parser.scripts[0])
    assert [line["label"] for line in data["lines"]] == ["ln, rate 0.1 (a)", "ln, rate 0.2 (b)"]
    assert [panel["heading"] for panel in data["panels"]] == ["training loss", "valid error", "test error"]
    assert data["panels"][2]["lines"] == [[[10, 0.2, 0.2, 0.2], [20, 0.1, 0.1, 0.1]], [[10, 0.8, 0.8, 0.8], [20, 0.4, 0.4, 0.4]]]


def test_a_run_that_is_left_out_is_named(tmp_path, runs):
    _, parser = _page(tmp_path, [runs[0], runs[0]._replace(path=tmp_path / "newer" / "ln")], "seed")
    assert f"{runs[0].path} is left out: a newer run has seed 0 of ln" in parser.text


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


def test_it_loads_nothing_and_runs_its_own_script_only(tmp_path, runs):
    text, parser = _page(tmp_path, runs)
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    digest = base64.b64encode(hashlib.sha256(parser.scripts[1].encode()).digest()).decode()
    [policy] = [attrs["content"] for tag, attrs in parser.tags if tag == "meta" and "content" in attrs and "src" in attrs["content"]]
    assert policy.startswith("default-src 'none'") and f"script-src 'sha256-{digest}'" in policy


def test_hostile_names_stay_text(tmp_path, runs):
    hostile = runs[0]._replace(variant=HOSTILE, config={**runs[0].config, HOSTILE: HOSTILE},
                               dataset=runs[0].dataset._replace(name=HOSTILE))
    _, before = _page(tmp_path, runs)
    text, parser = _page(tmp_path, [hostile, runs[1]])
    assert "<img" not in text and "\x1b" not in text and "\u2028" not in text
    assert {tag for tag, _ in parser.tags} == {tag for tag, _ in before.tags}
    assert len(parser.scripts) == 2 and parser.scripts[1] == before.scripts[1]
    assert "onerror=alert(1)" in parser.text and "onerror=alert(1)" in json.loads(parser.scripts[0])["lines"][0]["label"]


def test_figures_that_are_not_finite_are_left_out(tmp_path, runs):
    runs[0].points[1]["test_error"] = float("nan")
    _, parser = _page(tmp_path, runs)
    assert json.loads(parser.scripts[0])["panels"][2]["lines"][0] == [[10, 0.2, 0.2, 0.2]]


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_the_script_draws_and_answers_to_the_pointer(tmp_path, runs):
    """With a stand-in for the browser's document."""
    _, parser = _page(tmp_path, runs)
    stand_in = """
const made = [];
function node(name) {
  const self = { name, attributes: {}, children: [], textContent: "", classList: { toggle() {} } };
  self.setAttribute = (key, value) => { self.attributes[key] = value; };
  self.appendChild = child => { self.children.push(child); return child; };
  self.replaceChildren = () => { self.children = []; };
  self.getBoundingClientRect = () => ({ left: 0, width: 800 });
  made.push(self);
  return self;
}
const home = node("div");
home.clientWidth = 358;
globalThis.document = { createElementNS: (_, name) => node(name), createElement: node,
  querySelectorAll: () => [home] };
home.querySelector = () => ({ textContent: process.argv[2] });
"""
    after = """
const panel = home.children.filter(child => child.name === "svg")[1];
const values = home.children.filter(child => child.name === "p")[1];
panel.onpointermove({ clientX: 799 });
const text = values.children.map(child => child.textContent);
const sizes = panel.attributes.viewBox;
const ticks = panel.children.filter(child => child.attributes["text-anchor"] === "middle").map(child => child.textContent);
const paths = panel.children.filter(child => child.name === "path").map(child => child.attributes.d);
home.children[0].children[0].children[0].onclick();
const left = panel.children.filter(child => child.name === "path").length;
console.log(JSON.stringify({ text, paths, left, sizes, ticks }));
"""
    file = tmp_path / "page.js"
    file.write_text(stand_in + parser.scripts[1] + after)
    out = subprocess.run(["node", file, parser.scripts[0]], capture_output=True, text=True, check=True, timeout=PATIENCE)
    result = json.loads(out.stdout)
    assert result["text"] == ["updates 20", "ln, rate 0.1 (a): 5%", "ln, rate 0.2 (b): 20%"]
    assert result["sizes"] == "0 0 358 260" and len(result["ticks"]) <= 5  # a unit is a pixel of a telephone
    assert len(result["paths"]) == 2 and not any("NaN" in path for path in result["paths"]) and result["left"] == 1
