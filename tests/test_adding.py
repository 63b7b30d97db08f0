"""The adding problem: its data, its rule for the rate, its record, table and picture."""

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from duoln.errors import DataError
from duoln.examples import adding, records
from duoln.examples.adding import Record, Run
from duoln.randomness import Stream
from duoln.testing import check_error

EXAMPLES = Path(adding.__file__).parent
TINY = adding.Settings(length=6, hidden=8, batch_size=4, updates=6, every=2, validation_rows=10)
SMALL = adding.Settings(length=8, hidden=16, batch_size=32, updates=200, every=100, validation_rows=200)


@pytest.mark.parametrize("length", [6, 7])
def test_one_step_of_each_half_is_marked_and_their_values_are_added(length):
    batch = adding.make_batch(Stream(0, "test"), 500, length)
    values, markers = batch["x"][..., 0], batch["x"][..., 1]
    assert values.dtype == markers.dtype == batch["sum"].dtype == np.float32 and values.shape == (length, 500)
    assert (markers[:length // 2].sum(axis=0) == 1).all() and (markers[length // 2:].sum(axis=0) == 1).all()
    assert markers.any(axis=1).all() and set(np.unique(markers)) == {0, 1} and 0 <= values.min() < values.max() < 1
    np.testing.assert_allclose(batch["sum"], (values * markers).sum(axis=0), rtol=1e-6)
    assert np.array_equal(adding.make_batch(Stream(0, "test"), 500, length)["x"], batch["x"])


def test_it_learns(numpy_backend):
    """The same answer to every sequence has 0.167."""
    losses = list(adding.validations("layer", 1e-2, 0, numpy_backend, SMALL))
    assert len(losses) == 2 and losses[-1] < 0.05


def test_what_is_written_is_what_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    monkeypatch.setattr(records, "can_draw", lambda: False)  # another test draws
    record = adding.main(["--rates", "0.01", "0.001", "--choose", "0.03", "0.001", "--out", str(tmp_path / "a")], TINY)
    printed = capsys.readouterr().out
    assert [(run.norm, run.rate, run.seed, run.choice) for run in record.runs] == [
        (norm, rate, seed, seed == 100) for seed, rate in ((100, 0.03), (100, 0.001), (0, 0.01), (0, 0.001)) for norm in ("layer", "none")]
    again = adding.main(["--record", str(tmp_path / "a" / "adding.json"), "--out", str(tmp_path / "b")])
    assert capsys.readouterr().out == printed and [run.losses for run in again.runs] == [run.losses for run in record.runs]
    assert (tmp_path / "a" / "adding.json").read_bytes() == (tmp_path / "b" / "adding.json").read_bytes()
    check_error(DataError, lambda: records.read(tmp_path / "none.json", Record, Run), "none.json")


def test_without_rates_each_norm_is_trained_at_the_rate_chosen_for_it(tmp_path, capsys, monkeypatch):
    """Two of the norms that are for comparisons; the table has a row for each run, the picture a line for each."""
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    choice = {("rms", 0.01): 0.2, ("rms", 0.1): 0.3, ("layer-detached", 0.01): 0.4, ("layer-detached", 0.1): 0.1}
    monkeypatch.setattr(adding, "validations", lambda norm, rate, seed, *_: [choice[norm, rate]] * 3)
    norms = ["layer-detached", "rms"]
    record = adding.main(["--norms", *norms, "--rates", "--choose", "0.01", "0.1", "--seeds", "2", "--out", str(tmp_path)], TINY)
    assert [(run.norm, run.rate, run.seed) for run in record.runs if not run.choice] == [
        (norm, rate, seed) for seed in (0, 1) for norm, rate in (("layer-detached", 0.1), ("rms", 0.01))]
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split()[:3] for row in rows] == [["0.01", "rms", "2"], ["0.1", "layer-detached", "2"]]
    assert len(records.read(tmp_path / "adding.json", Record, Run).runs) == 8
    with pytest.raises(SystemExit):
        adding.main(["--rates"], TINY)


def test_what_has_run_is_kept_if_a_later_run_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    monkeypatch.setattr(adding, "validations", lambda norm, *_: [0.5] * 3 if norm == "layer" else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adding.main(["--rates", "0.1", "--out", str(tmp_path)], TINY)
    assert [run.norm for run in records.read(tmp_path / "adding.json", Record, Run).runs] == ["layer"]


def _record(*runs, every=10, updates=40):
    return Record("numpy", {"length": 9, "hidden": 3, "every": every, "updates": updates}, [Run(*run[:4], 1.0, run[4]) for run in runs])


def test_the_rate_is_chosen_by_the_last_loss_of_the_runs_for_the_choice():
    record = _record(("layer", 0.4, 100, True, [0.1, math.nan]), ("layer", 0.1, 100, True, [0.1, 0.3]), ("layer", 0.2, 100, True, [0.9, 0.2]),
                     ("layer", 0.1, 0, False, [0.1, 0.01]), ("none", 0.1, 0, False, [0.5, 0.5]))
    assert record.chosen("layer") == 0.2 and record.chosen("none") is None and record.rates() == [0.1]


@pytest.mark.parametrize(("losses", "updates"), [
    ([0.1, 0.009, 0.001, 0.002], 20), ([0.1, 0.001, 0.02, 0.001], 40), ([0.001] * 4, 10), ([0.001, 0.001, 0.001, 0.01], math.inf),
    ([0.001, math.nan, 0.001, 0.001], 30)])
def test_the_updates_until_a_loss_stays_low(losses, updates):
    record = _record(("layer", 0.1, 0, False, losses))
    assert record.updates_to_solve(record.runs[0]) == updates


def test_the_table_has_the_median_and_the_range():
    losses = {"layer": [[0.3, 0.2, 0.1], [0.03, 0.02, 0.001], [0.3, 0.3, 0.2]], "none": [[0.5, 0.4, 0.3]]}
    record = _record(*((norm, 0.1, seed, False, run) for norm, runs in losses.items() for seed, run in enumerate(runs)), updates=30)
    _, _, _, headings, layer, none = adding.table(record).splitlines()
    assert "after 10 updates" in headings and "after 30 updates" in headings
    assert layer.split() == ["0.1", "layer", "3", "0.30000", "(0.03000-0.30000)", "0.10000", "(0.00100-0.20000)", "never", "(30-never)"]
    assert none.split() == ["0.1", "none", "1", "0.50000", "0.30000", "never"]


# What is committed --------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def committed():
    return records.read(EXAMPLES / "adding.json", Record, Run)


def test_the_record_is_of_five_seeds_and_of_the_settings_in_the_program(committed):
    assert committed.settings == vars(adding.Settings()) and (EXAMPLES / "adding.png").is_file()
    assert all(len(run.losses) == 60 and np.isfinite(run.losses).all() for run in committed.runs)
    for rate in committed.rates():
        for norm in adding.VARIANTS:
            assert [run.seed for run in committed.results(norm, rate)] == list(range(5))


@pytest.mark.parametrize("name", ["adding.json", "adding_norms.json"])
def test_the_table_in_the_results_is_that_of_the_record(name):
    record = records.read(EXAMPLES / name, Record, Run)
    assert f"```text\n{adding.table(record)}\n```" in (EXAMPLES / "RESULTS.md").read_text()


@pytest.mark.minutes
def test_a_run_of_the_record_is_made_again(committed, numpy_backend):
    """The last bits of a product depend on the CPU, and training magnifies them; the first validations are the same."""
    [run] = [run for run in committed.results("layer", 1e-3) if run.seed == 0]
    losses = list(adding.validations("layer", 1e-3, 0, numpy_backend, adding.Settings(updates=100)))
    np.testing.assert_allclose(losses, run.losses[:2], rtol=0.05)


@pytest.mark.long
@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_picture_has_a_panel_a_rate_and_both_variants_in_each(committed, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(adding, "_panel", lambda panel, record, rate, draw=adding._panel: (draw(panel, record, rate), drawn.append(
        (panel.get_title(), [(line.get_label(), line.get_color(), line.get_linestyle()) for line in panel.get_lines()]))))
    adding.draw(committed, tmp_path / "a.png")
    assert [title.splitlines()[0] for title, _ in drawn] == [f"learning rate {rate:g}" for rate in committed.rates()]
    assert sum("chosen for" in title for title, _ in drawn) in (1, 2)
    for _, lines in drawn:
        assert lines[:2] == [("layer norm", "#0072B2", "-"), ("plain LSTM", "#E69F00", "--")] and len(lines) == 3
