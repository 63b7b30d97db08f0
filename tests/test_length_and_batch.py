"""The map over lengths and batch sizes: its rules, its record that goes on, its table and picture."""

import dataclasses
import json
import math
from importlib.util import find_spec
from pathlib import Path

import pytest

from duoln.errors import DataError, UsageError
from duoln.examples import adding, length_and_batch as maps, records
from duoln.examples.length_and_batch import Cell, Record, Run
from duoln.testing import check_error

TINY = adding.Settings(hidden=4, updates=6, every=2, validation_rows=10)
ASKED = ["--lengths", "6", "4", "--batches", "4", "2"]


@pytest.fixture(autouse=True)
def _on_numpy(monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")


@pytest.mark.parametrize(("losses", "first"), [
    ([0.1, 0.04, 0.03, 0.02], 2), ([0.04, 0.04, 0.06, 0.04, 0.04, 0.04], 4), ([0.04, 0.04], None), ([], None),
    ([0.04, math.nan, 0.04, 0.04], None), ([0.05, 0.05, 0.05], None), ([0.01] * 9, 1)])
def test_learnt_is_three_validations_in_a_row_below_the_level(losses, first):
    assert maps.solved_at(losses) == first


def test_a_run_ends_when_it_has_learnt_unless_a_rate_is_chosen_by_it(numpy_backend, monkeypatch):
    monkeypatch.setattr(adding, "validations", lambda *args: iter([0.1, 0.01, 0.01, 0.01, 0.01, 0.02]))
    ends = {seed: maps.train(Cell(6, 4), "layer", 0.1, seed, numpy_backend, TINY) for seed in (0, adding.CHOICE_SEED)}
    assert len(ends[0].losses) == 4 and not ends[0].choice
    assert len(ends[adding.CHOICE_SEED].losses) == 6 and ends[adding.CHOICE_SEED].choice


def test_cells_are_planned_seed_by_seed_and_the_quick_ones_first():
    plan = list(maps.plan_runs([25, 500], [2, 128], 2))
    cells = [Cell(25, 2), Cell(500, 2), Cell(25, 128), Cell(500, 128)]
    assert plan == [(seed, cell) for seed in (0, 1) for cell in cells]


def _lengths_trained(monkeypatch):
    trained = []
    before = adding.validations
    monkeypatch.setattr(adding, "validations", lambda norm, rate, seed, backend, settings: (
        trained.append((norm, rate, seed, settings.length, settings.batch_size)), before(norm, rate, seed, backend, settings))[1])
    return trained


@pytest.mark.long
def test_a_record_goes_on_where_it_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "can_draw", lambda: False)  # another test draws
    monkeypatch.setattr(maps, "CHOICE", Cell(5, 3))
    trained = _lengths_trained(monkeypatch)
    asked = [*ASKED, "--choose", "0.01", "0.1", "--out", str(tmp_path)]
    first = maps.main(asked, TINY)
    table = capsys.readouterr().out
    assert [t[2:] for t in trained[:4]] == [(100, 5, 3)] * 4 and len(trained) == 4 + 8
    assert {t[:2] for t in trained[4:]} == set(first.rates.items())
    assert maps.main(asked, TINY) == first == records.read(tmp_path / "length_and_batch.json", Record, Run)
    assert len(trained) == 12 and capsys.readouterr().out == table
    path = tmp_path / "length_and_batch.json"
    content = json.loads(path.read_text())
    content["runs"] = [run for run in content["runs"] if (run["length"], run["batch_size"]) != (6, 4)]
    path.write_text(json.dumps(content))
    again = maps.main([*asked, "--seeds", "2"], TINY)
    assert [t[2:] for t in trained[12:14]] == [(0, 6, 4)] * 2 and {t[2] for t in trained[14:]} == {1} and len(trained) == 12 + 2 + 8
    assert [run.losses for run in again.runs if (run.length, run.batch_size, run.seed) == (6, 4, 0)] == [
        run.losses for run in first.runs if (run.length, run.batch_size) == (6, 4)]


def test_what_is_refused(tmp_path):
    for asked, words in ((["--lengths", "1"], ["--lengths", "2"]), (["--batches", "0"], ["--batches"]), (["--seeds", "0"], ["--seeds"]),
                         (["--updates", "1"], ["--updates", "at least 2"])):
        check_error(UsageError, lambda a=asked: maps.main([*a, "--out", str(tmp_path)], TINY), *words)
    maps.main(["--lengths", "4", "--batches", "2", "--choose", "0.01", "--out", str(tmp_path)], TINY)
    larger = dataclasses.replace(TINY, hidden=5)
    check_error(UsageError, lambda: maps.main([*ASKED, "--out", str(tmp_path)], larger), "'hidden': 5", "'hidden': 4")
    (tmp_path / "length_and_batch.json").write_text('{"runs": [{}]}')
    check_error(DataError, lambda: maps.main([*ASKED, "--out", str(tmp_path)], TINY), "length_and_batch.json")


# The map -------------------------------------------------------------------------------------------------

SETTINGS = {"every": 10, "updates": 100}


def _runs(norm, length, size, *learnt_at, rate=0.1):
    """A run for each number of updates; None never learns."""
    losses = [[0.1] * 10 if at is None else [0.1] * (at // 10 - 1) + [0.01] * 3 for at in learnt_at]
    return [Run(norm, length, size, rate, seed, False, 1.0, of_seed) for seed, of_seed in enumerate(losses)]


RECORD = Record("numpy", SETTINGS, [
    *_runs("none", 25, 2, 80, 60, None), *_runs("layer", 25, 2, 20, 30, 10), *_runs("none", 25, 8, None), *_runs("layer", 25, 8, 50),
    *_runs("none", 50, 2, 40), *_runs("layer", 50, 2, None), *_runs("none", 50, 8, None), *_runs("layer", 50, 8, None),
    *_runs("none", 100, 2, 40), *_runs("none", 25, 2, 10, rate=0.5),
    Run("none", 25, 2, 0.1, 100, True, 1.0, [0.3, 0.2]), Run("none", 25, 2, 0.5, 100, True, 1.0, [0.1, math.nan]),
    Run("none", 25, 2, 0.9, 100, True, 1.0, [0.1, 0.25])], {"layer": 0.1, "none": 0.1})


def test_ratios_are_of_medians_and_bounds_where_one_never_learns():
    assert RECORD.ratio(Cell(25, 2)) == (4.0, "") and RECORD.updates(Cell(25, 2), "none") == [80, 60, math.inf]
    assert RECORD.ratio(Cell(25, 8)) == (2.0, ">") and RECORD.ratio(Cell(50, 2)) == (0.4, "<")
    assert math.isnan(RECORD.ratio(Cell(50, 8)).value) and RECORD.ratio(Cell(100, 2)) is None
    assert RECORD.cells() == ([25, 50, 100], [2, 8])


def test_gains_are_bounds_where_one_never_learns():
    gains = {(g["length"], g["batch_size"], g["seed"]): (g["least"], g["most"]) for g in RECORD.gains()}
    assert gains == {(25, 2, 0): (4, 4), (25, 2, 1): (2, 2), (25, 2, 2): (10, None), (25, 8, 0): (2, None), (50, 2, 0): (0, 0.4),
                     (50, 8, 0): (0, None)}


def test_the_table_has_a_line_a_length():
    lines = [" ".join(line.split()) for line in maps.table(RECORD).splitlines()[-4:]]
    assert lines == ["length batch 2 batch 8", "25 4 (80 / 20) >2 (never / 50)", "50 <0.4 (40 / never) neither", "100 - -"]


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_map_has_a_colour_and_words_for_each_cell(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    before = Axes.imshow
    monkeypatch.setattr(Axes, "imshow", lambda self, values, **options: (drawn.append((self, values)), before(self, values, **options))[1])
    path = maps.draw(RECORD, tmp_path / "a.png")
    [(axes, values)] = drawn
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert values[0] == [2.0, 1.0] and values[1][0] == pytest.approx(math.log2(0.4)) and math.isnan(values[1][1]) and math.isnan(values[2][0])
    assert [text.get_text() for text in axes.texts] == ["4\n(80 / 20)", ">2\n(never / 50)", "<0.4\n(40 / never)", "neither", "-", "-"]


def test_an_error_that_is_not_finite_is_kept(tmp_path):
    [path] = records.write(RECORD, tmp_path / "a.json")
    again = records.read(path, Record, Run)
    assert math.isnan(again.runs[-2].losses[1]) and again.runs[:-3] == RECORD.runs[:-3] and again.rates == RECORD.rates


def test_the_table_in_the_results_is_that_of_the_committed_record():
    examples = Path(maps.__file__).parent
    record = records.read(examples / "length_and_batch.json", Record, Run)
    finding = json.loads((examples / "length_and_batch.json").read_text())
    assert finding["ratios"] == record.gains() and finding["summary"] == maps.table(record)
    assert f"```text\n{maps.table(record)}\n```" in (examples / "RESULTS.md").read_text()
    for cell in [Cell(length, size) for length in (25, 50, 100) for size in (2, 8, 32)]:
        assert [len(record.updates(cell, norm)) for norm in adding.VARIANTS] == [5, 5]
