"""The MNIST example: it trains both batch sizes, and its record, table and picture show what was measured."""

import json
from pathlib import Path

import pytest

from duoln.errors import DataError, UsageError
from duoln.examples import mnist, records
from duoln.examples.mnist import Record, Run
from duoln.pictures.drawing import can_draw
from duoln.testing import check_error

EXAMPLES = Path(mnist.__file__).parent
TINY = mnist.Settings(hidden=8, digits=1280, digits_in_small_batches=40, evaluated=100, points=5)


def test_what_is_written_is_what_is_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    monkeypatch.setattr(records, "can_draw", lambda: False)  # another test draws
    record = mnist.main(["--out", str(tmp_path / "a")], TINY)
    printed = capsys.readouterr().out
    assert [(run.variant, run.batch_size, list(run.updates)) for run in record.runs] == [
        (variant, size, [2, 4, 6, 8, 10]) for size in (128, 4) for variant in ("none", "bn", "ln")]
    assert all(run.losses[-1] < run.losses[0] for run in record.runs if run.batch_size == 128), "it learns"
    again = mnist.main(["--record", str(tmp_path / "a" / "mnist.json"), "--out", str(tmp_path / "b")])
    assert capsys.readouterr().out == printed and [tuple(run[3:]) for run in again.runs] == [
        (round(run.seconds, 1), *run[4:]) for run in record.runs]
    assert (tmp_path / "a" / "mnist.json").read_bytes() == (tmp_path / "b" / "mnist.json").read_bytes()
    check_error(DataError, lambda: records.read(tmp_path / "none.json", Record, Run), "none.json")
    check_error(UsageError, lambda: mnist.main(["--seeds", "0"]), "[mnist]", "at least 1", "0")


def _record(*ends):
    return Record("numpy", "MNIST", {"hidden": 3}, [
        Run(variant, size, seed, 1.0, [10, 20], [2.0, end], [0.5, end / 10])
        for seed, end in enumerate(ends) for size in (128, 4) for variant in ("none", "bn", "ln")])


def test_the_table_has_the_median_and_the_range():
    lines = mnist.table(_record(0.3, 0.1, 0.2)).splitlines()
    assert lines[0] == "MNIST, 784-3-3-10 units, median (least to greatest) of 3 seeds"
    told = [" ".join(line.split()) for line in lines[2:4]]
    assert told == ["batches of 128 train NLL, update 10 train NLL, update 20 test error",
                    "no norm 2.000 (2.000-2.000) 0.200 (0.100-0.300) 2.0 (1.0-3.0) %"]
    assert "one seed" in mnist.table(_record(0.3))


@pytest.mark.long
@pytest.mark.skipif(not can_draw(), reason="pictures need matplotlib")
def test_the_picture_has_a_panel_for_each_batch_size(tmp_path):
    assert mnist.draw(_record(0.3, 0.1), tmp_path / "mnist.png").stat().st_size > 10_000


def test_what_the_results_show_is_the_record():
    record, page = records.read(EXAMPLES / "mnist.json", Record, Run), (EXAMPLES / "RESULTS.md").read_text(encoding="utf-8")
    assert mnist.table(record) in page
    assert json.dumps(record.settings) == json.dumps(mnist.Settings()._asdict())
    for size in (128, 4):
        pairs = zip(record.runs_of("ln", size), record.runs_of("bn", size), strict=True)
        assert all(a < b for layer, batch in pairs for a, b in zip(layer.losses, batch.losses, strict=True)), "as the page says"
