"""`duoln paper` as a user meets it, on what is kept beside the code."""

import json
from html.parser import HTMLParser

import pytest

from duoln.cli import main
from duoln.plugins.paper.contents import ENTRIES
from duoln.runs import kept


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A folder without runs."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def document(capsys):
    assert main(["paper", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.long
def test_in_a_pipe_every_figure_has_its_data_beside_it(capsys):
    assert main(["paper", "6.6", "--plugin", "mnist"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("    to decide it: duoln run mnist --preset paper --variant ln,bn --set batch_size=128")
    assert "falls faster than that of batch norm, batch 128: " in lines[at - 1]
    assert lines[at + 1].startswith("    ours: ") and " updates (" in lines[at + 1] and " seed" in lines[at + 1]
    assert lines[at + 2].startswith("    runs: mnist/results/batch-128: ") and ", ln-seed1" in lines[at + 2]
    assert lines[0].startswith("figure 6 (6.6): ")


@pytest.mark.long
def test_every_row_has_a_verdict_and_what_it_is_from(document):
    assert sum(sum(of_kind.values()) for of_kind in document["verdicts"].values()) == len(document["paper"]) and document["refused"] == []
    for row in document["paper"]:
        assert document["verdicts"][row["kind"] or "none"][row["verdict"]]
        if row["verdict"] in ("holds", "does not hold"):
            assert row["figures"] and row["rule"] and (row["evidence"] or row["finding"]) and row["so_far"] is None
        if evidence := row["evidence"]:
            assert evidence["share"] == evidence["updates"] / evidence["paper_updates"] and evidence["length_source"]
            assert len(evidence["seeds"]) == len(row["figures"][-1]["values"])
    tables = {table["where"]: [row[0] for row in table["rows"]] for table in document["tables"]}
    assert tables["table 3"] == ["Original", "Ours", "Ours + LN", "Ours + LN †"]  # not all of them are variants


def test_the_first_screen_is_a_line_for_each_section_in_80_columns(capsys, document):
    assert main(["paper"]) == 0
    out, err = capsys.readouterr()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    sections = {name.split()[0] for name, *_ in rows if name}
    assert sections == {row["section"] for row in document["paper"]} | {"all"}
    assert len(rows) <= 45 and max(map(len, out.splitlines())) <= 80 and "duoln paper 6.5" in err
    exact = sum(row["kind"] == "exact" and row["verdict"] == "holds" for row in document["paper"])
    assert next(counts for name, counts, kind, _ in rows if (name, kind) == ("all", "exact")).startswith(f"holds {exact},")


@pytest.mark.long
@pytest.mark.parametrize(("words", "kept"), [
    (["5.2"], lambda row: row["section"] in ("5.2.1", "5.2.2")),
    (["6.6"], lambda row: row["section"] == "6.6"),
    (["--verdict", "does not hold"], lambda row: row["verdict"] == "does not hold"),
    (["5", "--verdict", "holds"], lambda row: row["section"].startswith("5.") and row["verdict"] == "holds")])
def test_a_part_of_the_claims(document, capsys, words, kept):
    assert main(["paper", *words, "--json"]) == 0
    chosen = [row["claim"] for row in document["paper"] if kept(row)]
    assert [row["claim"] for row in json.loads(capsys.readouterr().out)["paper"]] == chosen != []


@pytest.mark.parametrize(("words", "told"), [(["9"], "expected one of the sections abstract, 3, 3.1"), (["6."], "found '6.'"),
                                             (["--verdict", "hold"], "did you mean 'holds'?"), (["--html", "paper.txt"], ".html")])
def test_what_is_not_there_is_told(capsys, tmp_path, words, told):
    assert main(["paper", "--plugin", "mnist", *words]) == 2 and told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_any_run_it_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kept, "kept_folder", lambda task: tmp_path / "results")
    assert main(["paper", "6.6", "--plugin", "mnist"]) == 0
    out, err = capsys.readouterr()
    assert "--runs" in err
    claims = [line for line in out.splitlines() if line.startswith("  ") and " batch norm, batch 128: " in line]
    assert claims and all(line.endswith(": not measured") for line in claims)
    assert "    open: no run of ln (batch_size 128), bn (batch_size 128)" in out.splitlines()
    assert main(["paper", "--plugin", "mnist", "--html", str(tmp_path / "paper.html")]) == 0
    assert "No runs yet" in (tmp_path / "paper.html").read_text()


# The page -----------------------------------------------------------------------------------------------------

class _Page(HTMLParser):
    """Every element, with its text; an element that is closed by another's end is an error."""

    void = frozenset({"meta", "br", "img"})

    def __init__(self):
        super().__init__()
        self.open, self.elements = [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append([tag, dict(attrs), ""])
        if tag not in self.void:
            self.open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        assert self.elements[self.open.pop()][0] == tag

    def handle_data(self, data):
        if self.open:
            self.elements[self.open[-1]][2] += data

    def texts(self, tag):
        return [text for name, _, text in self.elements if name == tag]


@pytest.mark.long
def test_the_page_is_well_formed_loads_nothing_and_has_everything(tmp_path, document):
    target = tmp_path / "paper.html"
    assert main(["paper", "--html", str(target)]) == 0
    page = _Page()
    page.feed(target.read_text(encoding="utf-8"))
    page.close()
    assert page.open == [] and all(attrs.get("src", "data:").startswith("data:") for _, attrs, _ in page.elements)
    [policy] = [attrs["content"] for tag, attrs, _ in page.elements if tag == "meta" and "http-equiv" in attrs]
    assert policy.startswith("default-src 'none'")
    assert [text for text in page.texts("h2") if "(" in text] == [f"{entry.where} ({entry.section})" for entry in ENTRIES]
    cells = page.texts("td")
    assert set(cells) >= {claim.text for entry in ENTRIES for claim in entry.claims}
    heads = {attrs["id"]: text for tag, attrs, text in page.elements if tag == "h2" and attrs}
    links = [(attrs["href"], text) for tag, attrs, text in page.elements if tag == "a"]
    assert [tag for tag, _, _ in page.elements if tag in ("h1", "h2", "a")][:2] == ["h1", "a"]  # an index is first
    assert len(links) == sum(len(entry.claims) for entry in ENTRIES) and all(heads[href.removeprefix("#")] == text for href, text in links)
    differing = [(key, str(ours), str(theirs)) for row in document["paper"] for key, (ours, theirs) in row["settings"].items()]
    assert differing and set(zip(cells, cells[1:], cells[2:], strict=False)) >= set(differing)
    pytest.importorskip("matplotlib")
    pictures = [attrs["alt"] for tag, attrs, _ in page.elements if tag == "img"]
    assert len(pictures) >= len([entry for entry in ENTRIES if entry.curves]) and set(pictures) == {"curves.png"}
