"""Test sequences longer than all of training: what is trained and measured, and what is committed."""

import json
import math
from pathlib import Path

import pytest

from duoln.examples import adding, adding_lengths, records
from duoln.examples.adding import SOLVED, Record, Run
from duoln.examples.adding_lengths import LENGTHS, NORMS
from duoln.plugins.paper.evidence import read_finding

EXAMPLES = Path(adding.__file__).parent
TINY = adding.Settings(length=6, hidden=4, batch_size=4, updates=4, every=2, validation_rows=10)


def _run(norm, rate, seed, last, *errors):
    return Run(norm, rate, seed, seed == adding.CHOICE_SEED, 1.0, [last], "here", dict(zip(map(str, LENGTHS), errors, strict=True)))


def test_each_norm_is_trained_at_the_rate_that_was_chosen_for_it(tmp_path, monkeypatch, capsys):
    ends = {("layer", 0.1): 0.2, ("layer", 0.2): 0.1, ("batch", 0.1): 0.1, ("batch", 0.2): math.nan, ("none", 0.1): 0.1, ("none", 0.2): 0.2}
    monkeypatch.setattr(adding_lengths, "train", lambda norm, rate, seed, *_: _run(norm, rate, seed, ends[norm, rate], 0.1, 0.2, None, 0.4))
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    record = adding_lengths.main(["--seeds", "2", "--choose", "0.1", "0.2", "--out", str(tmp_path)], TINY)
    assert [(run.norm, run.rate, run.seed) for run in record.runs if not run.choice] == [
        (norm, rate, seed) for seed in (0, 1) for norm, rate in zip(NORMS, (0.2, 0.1, 0.1), strict=True)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].split()[:4] == ["layer", "0.2", "0.10000", "(0.10000-0.10000)"]
    path = tmp_path / "adding_lengths.json"
    assert read_finding(path).content["summary"] == adding_lengths.table(record)
    assert [run.errors for run in records.read(path, Record, Run).runs] == [run.errors for run in record.runs]
    with pytest.raises(SystemExit):
        adding_lengths.main(["--seeds", "0"], TINY)


@pytest.mark.parametrize("norm", NORMS)
def test_a_trained_lstm_is_tested_at_each_length(norm, numpy_backend):
    run = adding_lengths.train(norm, 0.01, 0, numpy_backend, TINY)
    assert list(run.errors) == list(map(str, LENGTHS)) and all(math.isfinite(error) for error in run.errors.values())
    assert math.isfinite(run.losses[0]) and run.where.startswith("commit ")


def test_the_table_in_the_results_is_that_of_the_record():
    record = records.read(EXAMPLES / "adding_lengths.json", Record, Run)
    assert f"```text\n{adding_lengths.table(record)}\n```" in (EXAMPLES / "RESULTS.md").read_text()
    assert all([run.seed for run in record.runs if run.norm == norm and not run.choice] == list(range(5)) for norm in NORMS)
    assert json.loads((EXAMPLES / "adding_lengths.json").read_text())["solved"] == SOLVED == 0.01
