"""What has been measured on which machine: our lines, those of a reader, and the page that shows them."""

import json
import re
import shlex
from pathlib import Path

import pytest
from bench import made

from duoln.bench import machines, records
from duoln.bench.machines import Range, Work
from duoln.cli import build_parser, main

PAGE = Path(machines.__file__).parents[1] / "docs" / "timing.md"
LINES = [json.loads(line) for line in machines.FILE.read_text().splitlines()]


@pytest.mark.long
def test_every_line_says_what_was_measured_and_how():
    keys = ["label", "command", "machine", "op", "pass", "shape", "settings", "seconds", "ratio"]
    assert len({(line["label"], line["op"], line["pass"], *line["shape"]) for line in LINES}) == len(LINES) > 50
    for line in LINES:
        assert list(line) in (keys, [*keys, "peak_mib"])
        assert line["machine"].keys() == {"cpu", "cores", "vectors", "copy_gbps", "product_gflops"}
        for low, high in (line["seconds"], *line["ratio"].values(), *line.get("peak_mib", {}).values()):
            assert 0 < low <= high
        assert build_parser().parse_args(shlex.split(line["command"])[1:]).peer[:1] == ["torch"]


def test_the_page_has_what_the_lines_have():
    parts = re.split(r"^### ", PAGE.read_text().partition("## Machines")[2].partition("`duoln bench machines` prints")[0], flags=re.MULTILINE)[1:]
    measured = machines.measured()
    assert [part.splitlines()[0] for part in parts] == list(measured)
    for part in parts:
        works = {work.name: work for work in measured[part.splitlines()[0]]}
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")]
        assert len(rows) > 3
        for name, seconds, ratios in rows[1:]:
            fused = [side for side in works[name].ratios if side == "torch-fused" or side.startswith("torch.nn.")]
            sides = [next(iter(works[name].ratios)), *fused]
            assert (seconds, ratios) == (machines.times(works[name].seconds),
                                         ", ".join(machines.shares(works[name].ratios[side]) for side in sides))


def _timings(path, *medians, label="mine"):
    """A file with a record for each pair of medians: ours and PyTorch's."""
    for k, (ours, theirs) in enumerate(medians):
        cases = [{"side": side, "samples": [median], "median": median} for side, median in (("duoln", ours), ("torch", theirs))]
        copy = {"op": "copy", "shape": [9, 9]}
        records.append_timings(made.record(copy, *cases, label=label, time=f"2026-01-01T00:00:0{k}+00:00"), path)
    return path


def test_a_reader_adds_his_own(tmp_path):
    """Each side is compared with ours of the same record."""
    file = _timings(tmp_path / "mine.jsonl", (2.0, 4.0), (3.0, 10.0), (1.0, 0.5))
    [mine] = machines.measured([file]).items()
    assert mine == ("mine", [Work("mine", "layer_norm fwd 8x16", Range(1.0, 3.0), {"torch": Range(0.3, 2.0)})])
    known = next(iter(machines.measured()))
    joined = machines.measured([_timings(tmp_path / "known.jsonl", (1.0, 2.0), label=known)])
    assert joined[known][-1].seconds == (1.0, 1.0) and len(joined) == 1


def test_ratios_that_took_turns_are_those_of_the_record(tmp_path):
    file = tmp_path / "mine.jsonl"
    case = {"op": "mnist ln", "pass": "step", "clock": "wall_run", "cache": "running"}
    records.append_timings(made.record(case, {**case, "side": "torch", "ratio": 0.25}), file)
    [*_, works] = machines.measured([file]).values()
    assert works[0].ratios == {"torch": (0.25, 0.25)}


@pytest.mark.parametrize(("low", "high", "words"), [
    (2e-3, 2e-3, "2 ms"), (2e-3, 2.001e-3, "2 ms"), (1e-3, 2.5e-3, "1-2.5 ms"), (4.5e-4, 1.6e-3, "450 us - 1.6 ms")])
def test_a_range_of_times(low, high, words):
    assert machines.times(Range(low, high)) == words


@pytest.mark.parametrize("columns", ["40", "80"])
def test_tables_fit(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["bench", "machines"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and "\x1b" not in captured.out
    assert max(map(len, captured.out.splitlines())) <= int(columns)
    for words in (*machines.measured(), "0.41-0.49 torch", "3.8-5.2 ms"):
        assert words in captured.out


def test_files_that_hold_no_timings(tmp_path, capsys):
    (tmp_path / "no.jsonl").write_text('{"label": "x"}\n')
    assert main(["bench", "machines", str(tmp_path / "no.jsonl")]) == 4
    assert main(["bench", "machines", str(tmp_path / "none.jsonl")]) == 4
    captured = capsys.readouterr()
    assert captured.out == "" and "no.jsonl, line 1: machine" in captured.err.replace("\n", " ")
